#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/random_math.h"
#include "base/rng.h"
#include "ops/cpu/operations.h"
#include "tensor/convert.h"

namespace nmoe::cpu {
namespace {

template <class T>
void fill_with(Context& ctx, T* x, int64_t size, T value) {
  parallel_blocks(ctx, size, kTaskElements,
                  [&](int64_t begin, int64_t end, int) { std::fill(x + begin, x + end, value); });
}

template <class T>
void fill_with_normals(Context& ctx, T* x, int64_t size, const TruncatedNormal& draws) {
  const double mass_below = normal_mass_below(-draws.truncation);
  parallel_blocks(ctx, size, kTaskElements, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const double u = random::to_unit(random::bits(draws.seed, draws.stream, static_cast<uint64_t>(draws.first + i)));
      x[i] = static_cast<T>(draws.std * random::truncated_normal(u, mass_below));
    }
  });
}

// The sum of term(x[i]), in independent lanes: a single one would wait for every addition.
template <class Partial, class Real, class Term>
Partial sum_terms(const Real* x, int64_t size, Term term) {
  constexpr int64_t kLanes = 32;
  Partial lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(x[i + lane]);
  }
  for (; i < size; ++i) lanes[i % kLanes] += term(x[i]);
  Partial total = 0;
  for (const Partial lane : lanes) total += lane;
  return total;
}

// The elements of a tensor of the device's dtype, or of BF16 as bits.
template <class Real>
const Real* elements_of(const Tensor& x) {
  if constexpr (std::is_same_v<Real, uint16_t>) {
    NMOE_CHECK(x.dtype() == DType::kBF16, "bits of {}", dtype_name(x.dtype()));
    return static_cast<const uint16_t*>(x.rows_raw());
  } else {
    return x.rows_data<Real>();
  }
}

// The same of elements [begin, end) of a tensor, row by row where those lie apart.
template <class Partial, class Real, class Term>
Partial sum_terms(const Tensor& x, int64_t begin, int64_t end, Term term) {
  const Real* values = elements_of<Real>(x);
  if (x.dense()) return sum_terms<Partial>(values + begin, end - begin, term);
  const int64_t width = x.shape().row_elements(), stride = x.stride();
  Partial total = 0;
  while (begin < end) {
    const int64_t row = begin / width, count = std::min(end, (row + 1) * width) - begin;
    total += sum_terms<Partial>(values + row * stride + begin % width, count, term);
    begin += count;
  }
  return total;
}

// out[0] += the sum of term(x[i]). Every task has its own partial sum; they are added in order, so
// that the result does not depend on the threads.
template <class Partial, class Real, class Term>
void reduce(Context& ctx, Tensor x, Tensor out, Term term) {
  ArenaScope scratch(ctx.scratch);
  const int64_t size = x.num_elements();
  const int64_t num_tasks = ceil_div(size, kTaskElements);
  const Tensor partial_sums = scratch.allocate(DTypeOf<Partial>::value, {num_tasks});
  if (ctx.counting()) return;
  Partial* partials = partial_sums.data<Partial>();
  parallel_blocks(ctx, size, kTaskElements, [&](int64_t begin, int64_t end, int) {
    partials[begin / kTaskElements] = sum_terms<Partial, Real>(x, begin, end, term);
  });
  Partial total = 0;
  for (int64_t task = 0; task < num_tasks; ++task) total += partials[task];
  *out.data<Partial>() += total;
}

}  // namespace

template <class Real>
void fill(Context& ctx, const Fill& args) {
  const Tensor x = args.x;
  const double value = args.value;
  if (ctx.counting()) return;
  const int64_t size = x.num_elements();
  switch (x.dtype()) {
    case DType::kF64:
      return fill_with(ctx, x.data<double>(), size, value);
    case DType::kF32:
      return fill_with(ctx, x.data<float>(), size, static_cast<float>(value));
    case DType::kBF16:
      return fill_with(ctx, static_cast<uint16_t*>(x.raw()), size, float_to_bf16(static_cast<float>(value)));
    case DType::kI32:
      return fill_with(ctx, x.data<int32_t>(), size, static_cast<int32_t>(value));
    case DType::kU8:
      return fill_with(ctx, x.data<uint8_t>(), size, static_cast<uint8_t>(value));
    default:
      NMOE_CHECK(false, "{} is not a dtype of computations", dtype_name(x.dtype()));
  }
}

template <class Real>
void fill_truncated_normal(Context& ctx, const FillTruncatedNormal& args) {
  const Tensor x = args.x;
  const TruncatedNormal& draws = args.draws;
  if (ctx.counting()) return;
  if (x.dtype() == DType::kF64) return fill_with_normals(ctx, x.data<double>(), x.num_elements(), draws);
  fill_with_normals(ctx, x.data<float>(), x.num_elements(), draws);
}

template <class Real>
void copy(Context& ctx, const Copy& args) {
  const Tensor source = args.source, destination = args.destination;
  if (ctx.counting()) return;
  const auto* from = static_cast<const std::byte*>(source.raw());
  auto* to = static_cast<std::byte*>(destination.raw());
  constexpr int64_t kTaskBytes = kTaskElements * 4;
  parallel_blocks(ctx, source.num_bytes(), kTaskBytes, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

// Weights are their own masters here.
template <class Real>
void split_weight(Context& ctx, const SplitWeight& args) {
  NMOE_CHECK(!args.low.defined(), "weights of {} have no low part", dtype_name(args.w.dtype()));
  copy<Real>(ctx, {args.master, args.w});
}

template <class Real>
void join_weight(Context& ctx, const JoinWeight& args) {
  NMOE_CHECK(!args.low.defined(), "weights of {} have no low part", dtype_name(args.w.dtype()));
  copy<Real>(ctx, {args.w, args.master});
}

template <class Real>
void sum(Context& ctx, const Sum& args) {
  const Tensor x = args.x, out = args.out;
  reduce<double, Real>(ctx, x, out, [](Real value) { return static_cast<double>(value); });
}

template <class Real>
void sums_of_squares(Context& ctx, const SumsOfSquares& args) {
  const auto square = [](Real value) { return static_cast<double>(value) * static_cast<double>(value); };
  for (const SumOfSquares& one : args.all) {
    if (one.parts.defined()) {
      reduce<double, double>(ctx, one.parts, one.out, [](double value) { return value; });
    } else if (one.x.dtype() == DType::kBF16) {
      reduce<double, uint16_t>(ctx, one.x, one.out, [&](uint16_t bits) { return square(bf16_to_float(bits)); });
    } else {
      reduce<double, Real>(ctx, one.x, one.out, square);
    }
  }
}

template <class Real>
void add_time(Context& ctx, const AddTime& args) {
  if (ctx.counting()) return;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto ns = static_cast<int64_t>(std::chrono::nanoseconds(now).count());
  int64_t& begun = *args.begun.data<int64_t>();
  if (args.begin) {
    begun = ns;
  } else {
    *args.sum.data<double>() += static_cast<double>(ns - begun);
  }
}

template <class Real>
void sum_in_order(Context& ctx, const SumInOrder& args) {
  if (ctx.counting()) return;
  const auto x = args.x.span<double>();
  const int32_t* order = args.order.data_or_null<int32_t>();
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[order == nullptr ? i : static_cast<size_t>(order[i])];
  *args.out.data<double>() = sum;
}

template <class Real>
void count_non_finite(Context& ctx, const CountNonFinite& args) {
  const Tensor x = args.x, out = args.out;
  if (x.dtype() == DType::kBF16) {
    constexpr uint16_t kInfinity = 0x7F80;
    return reduce<int32_t, uint16_t>(ctx, x, out,
                                     [](uint16_t bits) -> int32_t { return (bits & kInfinity) == kInfinity ? 1 : 0; });
  }
  using Bits = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;
  constexpr auto kExponent = std::bit_cast<Bits>(std::numeric_limits<Real>::infinity());
  reduce<int32_t, Real>(
      ctx, x, out, [](Real value) -> int32_t { return (std::bit_cast<Bits>(value) & kExponent) == kExponent ? 1 : 0; });
}

template <class Real>
void clip_scale(Context& ctx, const ClipScale& args) {
  const Tensor sum_squares = args.sum_squares, loss_sum = args.loss_sum;
  const double max_norm = args.max_norm;
  const Tensor scale = args.scale, stopped = args.stopped;
  if (ctx.counting()) return;
  const double squares = *sum_squares.data<double>();
  if (!std::isfinite(squares) || !std::isfinite(*loss_sum.data<double>())) *stopped.data<int32_t>() = 1;
  const double clipped = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / std::sqrt(squares));
  *scale.data<double>() = *stopped.data<int32_t>() == 0 ? clipped : std::numeric_limits<double>::quiet_NaN();
}

NMOE_CPU_INSTANTIATE(fill, Fill)
NMOE_CPU_INSTANTIATE(fill_truncated_normal, FillTruncatedNormal)
NMOE_CPU_INSTANTIATE(copy, Copy)
NMOE_CPU_INSTANTIATE(split_weight, SplitWeight)
NMOE_CPU_INSTANTIATE(join_weight, JoinWeight)
NMOE_CPU_INSTANTIATE(sum, Sum)
NMOE_CPU_INSTANTIATE(sums_of_squares, SumsOfSquares)
NMOE_CPU_INSTANTIATE(add_time, AddTime)
NMOE_CPU_INSTANTIATE(sum_in_order, SumInOrder)
NMOE_CPU_INSTANTIATE(count_non_finite, CountNonFinite)
NMOE_CPU_INSTANTIATE(clip_scale, ClipScale)

}  // namespace nmoe::cpu
