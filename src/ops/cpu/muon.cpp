#include "ops/cpu/muon.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "ops/cpu/blas.h"

namespace nmoe::cpu {
namespace {

// Keller Jordan's quintic, f(s) = a s + b s^3 + c s^5, as the Moonlight recipe uses it (arXiv
// 2502.16982, section 2.2): it pushes every singular value in (0, 1] towards 1, without converging
// to it.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kNormEpsilon = 1e-7;

constexpr int64_t kTile = 128;         // side of an output tile of a product
constexpr int64_t kSlice = 16 * 1024;  // elements of an elementwise task

// The matrices of one Newton-Schulz iteration; x is [small, large] with small <= large.
template <class Real>
struct Workspace {
  Real* x;        // [small, large]
  Real* next;     // [small, large]
  Real* gram;     // [small, small]
  Real* poly;     // [small, small]
  Real* partial;  // one sum of squares a slice
};

template <class Real>
struct Problem {
  int64_t rows, cols, small, large;
  Real* w;
  const Real* grad;
  Real* momentum;
  Real grad_scale, lr, beta, weight_decay;
  int iterations;

  bool transposed() const { return rows > cols; }
};

// Runs task(0) ... task(n - 1), on one thread or on all. The tasks write apart, so their order does
// not matter. Not a template parameter: code compiled twice may round differently.
using Task = std::function<void(int64_t)>;
using RunTasks = std::function<void(int64_t num_tasks, const Task& task)>;

// c = alpha * op(a) op(b) + beta * c over tiles, [m, n]. With `symmetric` the product is known to
// equal its transpose: only tiles on and below the diagonal are computed, the others mirrored.
template <class Real>
void tiled_gemm(const RunTasks& run_tasks, bool symmetric, int64_t m, int64_t n, int64_t k,
                Real alpha, const Real* a, int64_t a_stride, Operand<Real> b, Real beta, Real* c) {
  const int64_t across = ceil_div(n, kTile);
  run_tasks(ceil_div(m, kTile) * across, [&](int64_t task) {
    const int64_t row = task / across * kTile, col = task % across * kTile;
    if (symmetric && col > row) return;
    const int64_t rows = std::min(kTile, m - row), cols = std::min(kTile, n - col);
    Operand<Real> b_tile = b;
    b_tile.data += b.transpose == Transpose::kYes ? col * b.stride : col;
    gemm<Real>(rows, cols, k, alpha, {a + row * a_stride, a_stride}, b_tile, beta,
               c + row * n + col, n);
    if (!symmetric || col == row) return;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) c[(col + j) * n + row + i] = c[(row + i) * n + col + j];
    }
  });
}

// One matrix.
template <class Real>
void update_matrix(const Problem<Real>& p, const Workspace<Real>& ws, const RunTasks& run_tasks) {
  const int64_t size = p.rows * p.cols;
  const int64_t num_slices = ceil_div(size, kSlice);
  // ws.next holds the Nesterov direction as it lies in w, ws.x the same with the short side first.
  run_tasks(num_slices, [&](int64_t slice) {
    const int64_t end = std::min((slice + 1) * kSlice, size);
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = slice * kSlice; i < end; ++i) {
      const Real g = p.grad_scale * p.grad[i];
      p.momentum[i] = p.beta * p.momentum[i] + g;
      const Real u = g + p.beta * p.momentum[i];
      ws.next[i] = u;
      sum += u * u;
    }
    ws.partial[slice] = sum;
  });
  Real sum_squares = 0;
  for (int64_t slice = 0; slice < num_slices; ++slice) sum_squares += ws.partial[slice];
  const Real inverse_norm = 1 / (std::sqrt(sum_squares) + static_cast<Real>(kNormEpsilon));
  run_tasks(p.small, [&](int64_t i) {
    const int64_t row_stride = p.transposed() ? 1 : p.large,
                  col_stride = p.transposed() ? p.small : 1;
    for (int64_t j = 0; j < p.large; ++j) {
      ws.x[i * p.large + j] = inverse_norm * ws.next[i * row_stride + j * col_stride];
    }
  });

  Real* x = ws.x;
  Real* next = ws.next;
  for (int iteration = 0; iteration < p.iterations; ++iteration) {
    // gram = x x^T;  poly = b gram + c gram^2;  next = a x + poly x
    tiled_gemm<Real>(run_tasks, true, p.small, p.small, p.large, 1, x, p.large,
                     {x, p.large, Transpose::kYes}, 0, ws.gram);
    run_tasks(p.small, [&](int64_t i) {
      for (int64_t j = 0; j < p.small; ++j)
        ws.poly[i * p.small + j] = static_cast<Real>(kB) * ws.gram[i * p.small + j];
    });
    tiled_gemm<Real>(run_tasks, true, p.small, p.small, p.small, static_cast<Real>(kC), ws.gram,
                     p.small, {ws.gram, p.small}, 1, ws.poly);
    run_tasks(p.small, [&](int64_t i) {
      for (int64_t j = 0; j < p.large; ++j)
        next[i * p.large + j] = static_cast<Real>(kA) * x[i * p.large + j];
    });
    tiled_gemm<Real>(run_tasks, false, p.small, p.large, p.small, 1, ws.poly, p.small, {x, p.large},
                     1, next);
    std::swap(x, next);
  }

  const Real step =
      p.lr * static_cast<Real>(0.2) * std::sqrt(static_cast<Real>(std::max(p.rows, p.cols)));
  const Real keep = 1 - p.lr * p.weight_decay;
  run_tasks(p.rows, [&](int64_t i) {
    const int64_t row_stride = p.transposed() ? 1 : p.large,
                  col_stride = p.transposed() ? p.large : 1;
    for (int64_t j = 0; j < p.cols; ++j) {
      Real& w = p.w[i * p.cols + j];
      w = keep * w - step * x[i * row_stride + j * col_stride];
    }
  });
}

}  // namespace

template <class Real>
void muon_step(Context& ctx, const MuonStep& args) {
  const Shape& shape = args.w.shape();
  const int64_t batch = shape.rank() == 3 ? shape[0] : 1;
  const int64_t rows = shape[-2], cols = shape[-1], size = rows * cols;
  const int64_t small = std::min(rows, cols), large = std::max(rows, cols);

  // Many matrices: a thread each. Few: all threads on one after another. The tasks of a matrix are
  // the same.
  const bool matrix_per_thread = batch >= ctx.num_threads();
  const int64_t num_workspaces = matrix_per_thread ? ctx.num_threads() : 1;
  ArenaScope scope(ctx.scratch);
  const DType dtype = DTypeOf<Real>::value;
  const Tensor x = scope.allocate(dtype, {num_workspaces, size});
  const Tensor next = scope.allocate(dtype, {num_workspaces, size});
  const Tensor gram = scope.allocate(dtype, {num_workspaces, small * small});
  const Tensor poly = scope.allocate(dtype, {num_workspaces, small * small});
  const Tensor partial = scope.allocate(dtype, {num_workspaces, ceil_div(size, kSlice)});
  if (ctx.counting()) return;

  const auto problem = [&](int64_t index) {
    return Problem<Real>{.rows = rows,
                         .cols = cols,
                         .small = small,
                         .large = large,
                         .w = args.w.data<Real>() + index * size,
                         .grad = args.grad.data<Real>() + index * size,
                         .momentum = args.momentum.data<Real>() + index * size,
                         .grad_scale = static_cast<Real>(*args.grad_scale.data<double>()),
                         .lr = static_cast<Real>(args.lr),
                         .beta = static_cast<Real>(args.beta),
                         .weight_decay = static_cast<Real>(args.weight_decay),
                         .iterations = args.iterations};
  };
  const auto workspace = [&](int64_t index) {
    return Workspace<Real>{.x = x[index].data<Real>(),
                           .next = next[index].data<Real>(),
                           .gram = gram[index].data<Real>(),
                           .poly = poly[index].data<Real>(),
                           .partial = partial[index].data<Real>()};
  };
  if (matrix_per_thread) {
    ctx.pool.parallel_for(batch, [&](int64_t index, int thread) {
      update_matrix(problem(index), workspace(thread), [](int64_t num_tasks, const Task& task) {
        for (int64_t i = 0; i < num_tasks; ++i) task(i);
      });
    });
  } else {
    for (int64_t index = 0; index < batch; ++index) {
      update_matrix(problem(index), workspace(0), [&ctx](int64_t num_tasks, const Task& task) {
        ctx.pool.parallel_for(num_tasks, [&task](int64_t i, int) { task(i); });
      });
    }
  }
}

template void muon_step<float>(Context&, const MuonStep&);
template void muon_step<double>(Context&, const MuonStep&);

}  // namespace nmoe::cpu
