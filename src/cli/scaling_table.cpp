#include "cli/scaling_table.h"

#include <fmt/format.h>

#include "cli/text_table.h"
#include "config/scaling.h"
#include "model/spec/scaling.h"
#include "model/spec/spec.h"
#include "optim/optimizer.h"

namespace nmoe::cli {
namespace {

std::string factor(double value) { return value == 1.0 ? "1" : fmt::format("{:.4g}", value); }

std::string shapes(const ScalingRow& row) {
  const Shape& shape = row.weight.shape;
  return shape == row.base_shape ? fmt::format("{}", shape) : fmt::format("{}, base {}", shape, row.base_shape);
}

}  // namespace

std::string scaling_table(const Config& config) {
  const ScalingRule rule = config.model.scaling.rule;
  if (rule == ScalingRule::kNone) return "";
  using enum TextTable::Side;
  TextTable table({{"weight"},
                   {"shape"},
                   {"role"},
                   {"spread", kRight},
                   {"rate", kRight},
                   {"decay", kRight},
                   {"eps", kRight},
                   {"source (arXiv)"}});
  const std::vector<WeightSpec> base = describe_model(scaling_base(config.model)).weights;
  const std::vector<ScalingRow> rows = scaling_rows(config.model, base, describe_model(config.model).weights);
  for (const ScalingRow& row : rows) {
    const WeightScaling& scaling = row.weight.scaling;
    const OptimizerKind optimizer = group_of(config.optim, row.weight.group).optimizer;
    const bool is_drawn = row.weight.init == InitKind::kTruncatedNormal || row.weight.init == InitKind::kOnes;
    table.add({row.name, shapes(row), std::string(row.role), is_drawn ? factor(scaling.spread) : "-",
               factor(scaling.rate(optimizer)), row.weight.decay ? factor(scaling.decay(optimizer)) : "-",
               optimizer == OptimizerKind::kAdamW ? factor(scaling.eps) : "-",
               sources_of_scaling(row.weight, rule, optimizer)});
  }
  const std::string note = note_on_scaling(config.model);
  return fmt::format(
      "\nmodel.scaling.rule = \"{}\": factors of the base's spreads, peak rates and floor, decays and epsilon\n{}"
      "multipliers of residual branches, attention and logits are in these; rate * decay is the base's "
      "(2505.01618)\n{}",
      rule == ScalingRule::kMup ? "mup" : "completep", table.text(), note.empty() ? "" : note + "\n");
}

}  // namespace nmoe::cli
