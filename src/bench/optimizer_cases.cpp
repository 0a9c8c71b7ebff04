#include "bench/optimizer_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/moment_codes.h"

namespace nmoe {
namespace {

using Work = OpCase::Work;

AdamWStep adamw_step(Workbench& w, int64_t n, DType moments, bool has_masters) {
  const bool has_codes = moments == DType::kU8;
  const auto moment = [&](double value) {
    const Tensor x = w.arena().allocate(moments, {n});
    w.ops().fill({x, value});
    return x;
  };
  const auto scales = [&] {
    if (!has_codes) return Tensor();
    const Tensor x = w.arena().allocate(DType::kU8, {moments::num_blocks(n)});
    w.ops().fill({x, 0.0});
    return x;
  };
  AdamWStep args = {.w = w.act({n}, 0.02),
                    .low = has_masters ? w.arena().allocate(DType::kI16, {n}) : Tensor(),
                    .grad = w.stat({n}),
                    .m = moment(0.0),
                    .v = moment(has_codes ? 0.0 : 1.0),
                    .m_scales = scales(),
                    .v_scales = scales(),
                    .grad_scale = w.f64({1.0}),
                    .rates = w.f64({1e-4, 1.0, 1.0})};
  if (moments != w.ops().stat_dtype()) args.random.key = w.arena().allocate(DType::kI64, {1});
  return args;
}

// A master weight takes as much as one of stat; it and both moments are read and written, and the gradient read.
void add_adamw(int64_t n, DType stat, bool has_masters, std::vector<OpCase>& cases) {
  for (const auto& [name, moments] :
       {std::pair{"AdamW", stat}, {"AdamW, moments in bf16", DType::kBF16}, {"AdamW, moments in fp8", DType::kU8}}) {
    const double scale = moments == DType::kU8 ? 1.0 / static_cast<double>(moments::kBlock) : 0.0;
    const double bytes =
        3 * static_cast<double>(dtype_bytes(stat)) + 4 * (static_cast<double>(dtype_bytes(moments)) + scale);
    cases.push_back({name, fmt::format("{} weights", n), 0.0, bytes * static_cast<double>(n),
                     [n, moments = moments, has_masters](Workbench& w) -> Work {
                       const AdamWStep args = adamw_step(w, n, moments, has_masters);
                       return [&w, args] { w.ops().adamw_steps({.all = {args}}); };
                     }});
  }
}

// Gradients and momentum are stat.
void add_muon(const OpSizes::Layer& size, DType stat, bool has_masters, std::vector<OpCase>& cases) {
  const int64_t E = size.E, D = size.D, F = size.F;
  const auto low = static_cast<double>(std::min(D, F)), high = static_cast<double>(std::max(D, F));
  const auto count = static_cast<double>(E);
  const MuonStep settings;
  const double flops = settings.iterations * count * (4 * low * low * high + 2 * low * low * low),
               bytes = 5 * static_cast<double>(dtype_bytes(stat)) * count * low * high;
  for (const auto& [name, products] :
       {std::pair{"Muon", MuonProducts::kDevice}, {"Muon, products in bf16", MuonProducts::kBf16}}) {
    cases.push_back({name, fmt::format("{} x {} x {}", E, D, F), flops, bytes,
                     [E, D, F, products = products, has_masters](Workbench& w) -> Work {
                       const MuonStep args = {
                           .w = w.act({E, D, F}, 0.02),
                           .low = has_masters ? w.arena().allocate(DType::kI16, {E, D, F}) : Tensor(),
                           .grad = w.stat({E, D, F}),
                           .momentum = w.stat({E, D, F}),
                           .grad_scale = w.f64({1.0}),
                           .rates = w.f64({1e-4}),
                           .products = products};
                       return [&w, args] { w.ops().muon_step(args); };
                     }});
  }
}

}  // namespace

void add_optimizer_cases(const OpSizes& sizes, DType stat, bool has_masters, std::vector<OpCase>& cases) {
  add_adamw(sizes.weights, stat, has_masters, cases);
  add_muon(sizes.layers.front(), stat, has_masters, cases);
}

}  // namespace nmoe
