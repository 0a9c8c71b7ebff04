#include "model/parts/mixer.h"

#include "model/parts/gqa.h"
#include "model/parts/mla.h"

namespace nmoe {
namespace {

struct MixerEntry {
  MixerKind kind;
  MixerSpec (*describe)(const Layer& layer, WeightList& weights);
  std::unique_ptr<Mixer> (*make)(const Layer& layer, WeightSet& weights);
};

template <class Kind>
std::unique_ptr<Mixer> make(const Layer& layer, WeightSet& weights) {
  return std::make_unique<Kind>(layer, weights);
}

constexpr MixerEntry kMixers[] = {
    {MixerKind::kMla, LatentAttention::describe, make<LatentAttention>},
    {MixerKind::kGqa, GroupedQueryAttention::describe, make<GroupedQueryAttention>},
};

const MixerEntry& entry_of(MixerKind kind) {
  for (const MixerEntry& entry : kMixers) {
    if (entry.kind == kind) return entry;
  }
  NMOE_CHECK(false, "no mixer of kind {}", static_cast<int>(kind));
}

}  // namespace

MixerSpec describe_mixer(const Layer& layer, WeightList& weights) {
  return entry_of(layer.spec.mixer).describe(layer, weights);
}

std::unique_ptr<Mixer> make_mixer(const Layer& layer, WeightSet& weights) {
  return entry_of(layer.spec.mixer).make(layer, weights);
}

}  // namespace nmoe
