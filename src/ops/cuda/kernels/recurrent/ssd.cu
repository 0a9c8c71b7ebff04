// The SSD scan forward, for any sizes: states at chunks' beginnings first (ssd_states.cu), then chunks side by side, a
// block for 64 values of a head in one. Hopper has a kernel of its own for common sizes (sm90/ssd_forward.cu).
#include "ops/cuda/kernels/recurrent/ssd_chunks.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/ssd.h"

namespace nmoe::cuda {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};

namespace ssd {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads) outputs_kernel(Scan<T> in, const T* states, T* y) {
  extern __shared__ uint4 shared[];
  T* const a = reinterpret_cast<T*>(shared);
  T* const b = a + kTileBytes<T> / sizeof(T);
  __shared__ ChunkSteps steps;
  const int tiles = ceil_div(in.P, kSide);
  const int head = static_cast<int>(blockIdx.y) / tiles, p = static_cast<int>(blockIdx.y) % tiles * kSide;
  for (int number = static_cast<int>(blockIdx.x); number < in.count(); number += static_cast<int>(gridDim.x)) {
    const Chunk chunk = in.chunks[number];
    const int size = chunk.size(), group = in.group(head);
    const Matrix<T> x = in.x_rows(chunk.begin, size, head), b_rows = in.b_rows(chunk.begin, size, group);
    const Matrix<T> c_rows = in.c_rows(chunk.begin, size, group);
    steps.load(in, chunk, head);
    for (int i0 = 0; i0 < size; i0 += kSide) {
      Sums sums;
      for (int j0 = 0; j0 <= i0; j0 += kSide) {
        Sums mix;
        for (int n = 0; n < in.N; n += kSide) {
          load_and_multiply<false, false>(
              a, b, in.N - n, mix, [&](T* to) { load_tile(to, c_rows.from(i0, n)); },
              [&](T* to) { load_tile(to, b_rows.from(j0, n)); });
        }
        mix.each([&](int i, int j, float& value) {
          const bool sees = j0 + j <= i0 + i && i0 + i < size;
          value = sees ? value * decay(steps.sum[i0 + i] - steps.sum[j0 + j]) * steps.step[j0 + j] : 0.0F;
        });
        load_and_multiply<false, true>(
            a, b, size - j0, sums, [&](T* to) { mix.store(to); }, [&](T* to) { load_tile(to, x.from(j0, p)); });
      }
      for (int n = 0; chunk.before >= 0 && n < in.N; n += kSide) {
        load_and_multiply<false, false>(
            a, b, in.N - n, sums,
            [&](T* to) { load_tile(to, c_rows.from(i0, n), [&](int i) { return decay(steps.sum[i0 + i]); }); },
            [&](T* to) { load_tile(to, in.state(states, chunk.before, head).from(p, n)); });
      }
      const float d = in.d[head];
      sums.each([&](int i, int j, float value) {
        if (i0 + i >= size || p + j >= in.P) return;
        value = fmaf(d, to_float(x.data[(i0 + i) * x.stride + p + j]), value);
        y[((chunk.begin + i0 + i) * int64_t{in.H} + head) * in.P + p + j] = from_float<T>(value);
      });
    }
  }
}

}  // namespace
}  // namespace ssd

void ssd_forward(Context& ctx, const SsdForward& args, const SsdForwardPlan& plan) {
  const SsdSizes sizes = ssd_sizes(args.in);
  if (sizes.tokens == 0 || sizes.heads == 0 || sizes.head_dim == 0) return;
  ssd::fill_tables(ctx, args.in, args.final_state.defined(), plan.tables);
  if constexpr (kKernels.has_sm90()) {
    if (!plan.states.defined()) return sm90::ssd_forward(ctx, args, plan.tables);
  }
  ssd::fill_states(ctx, args.in, plan.tables, args.final_state, plan.states);
  dispatch_act(args.in.x.dtype(), [&](auto element) {
    using T = decltype(element);
    const dim3 grid(ssd::chunk_grid(args.in),
                    short_grid_size(sizes.heads * ceil_div(sizes.head_dim, int64_t{ssd::kSide})));
    ssd::outputs_kernel<T><<<grid, ssd::kThreads, 2 * ssd::kTileBytes<T>, ctx.stream>>>(
        ssd::scan_of<T>(args.in, plan.tables), plan.states.data<T>(), args.y.data<T>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
