#include "model/parts/mixer.h"

#include "model/parts/gqa.h"
#include "model/parts/mla.h"

namespace nmoe {
namespace {

struct MixerEntry {
  PartKind kind;
  std::unique_ptr<Mixer> (*make)(const LayerPart& part, WeightSet& weights);
};

template <class Kind>
std::unique_ptr<Mixer> make(const LayerPart& part, WeightSet& weights) {
  return std::make_unique<Kind>(part, weights);
}

constexpr MixerEntry kMixers[] = {
    {PartKind::kMla, make<LatentAttention>},
    {PartKind::kGqa, make<GroupedQueryAttention>},
};

const MixerEntry& entry_of(PartKind kind) {
  for (const MixerEntry& entry : kMixers) {
    if (entry.kind == kind) return entry;
  }
  NMOE_CHECK(false, "no mixer of kind {}", static_cast<int>(kind));
}

}  // namespace

std::unique_ptr<Mixer> make_mixer(const LayerPart& part, WeightSet& weights) {
  return entry_of(part.spec.kind).make(part, weights);
}

}  // namespace nmoe
