// The SSD scan: against the CPU in double precision, the same bits twice, documents apart, generation against training.
#include <array>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct ScanSizes {
  int64_t seqs = 1, tokens = 8, heads = 2, head_dim = 3, groups = 1, state = 4, chunk = 4;

  int64_t rows() const { return seqs * tokens; }
  Shape x() const { return {rows(), heads, head_dim}; }
  Shape b() const { return {rows(), groups, state}; }
  Shape states() const { return {seqs, heads, head_dim, state}; }
};

// What a scan reads and writes, on one device. Rows of x, b, c and dt and of their gradients lie apart, as in a layer.
struct ScanTensors {
  SsdForward forward;
  SsdBackward backward;

  // Everything that is written, by name.
  std::vector<std::pair<std::string, Tensor>> results() const {
    std::vector<std::pair<std::string, Tensor>> all{{"y", forward.y},
                                                    {"dx", backward.dx},
                                                    {"db", backward.db},
                                                    {"dc", backward.dc},
                                                    {"ddt", backward.ddt},
                                                    {"ddt_bias", backward.ddt_bias},
                                                    {"da_log", backward.da_log},
                                                    {"dd", backward.dd}};
    if (forward.final_state.defined()) {
      all.emplace_back("final_state", forward.final_state);
      all.emplace_back("dinitial_state", backward.dinitial_state);
    }
    return all;
  }
};

class CudaSsd : public CudaTest {
 protected:
  CudaSsd() : CudaTest(0, int64_t{320} << 20) {}

  // In F32, of values that `act` can hold.
  ScanTensors make(DType act, const ScanSizes& s, const std::vector<double>& bounds, bool goes_on) {
    const auto apart = [&](Shape shape, double scale = 1.0) {
      const int64_t beside = shape.row_elements() % 8 == 0 ? 8 : 3;
      return pool_.apart(normal(shape, act, scale), beside);
    };
    SsdInputs in{.num_seqs = s.seqs,
                 .seq_len = s.tokens,
                 .chunk = s.chunk,
                 .x = apart(s.x()),
                 .b = apart(s.b(), 0.5),
                 .c = apart(s.b(), 0.5),
                 .dt = apart({s.rows(), s.heads}),
                 .dt_bias = normal({s.heads}, DType::kF32, 0.5, -2.0),
                 .a_log = normal({s.heads}, DType::kF32, 0.5, 0.5),
                 .d = normal({s.heads})};
    if (!bounds.empty()) in.cu_seqlens = pool_.ints({static_cast<int64_t>(bounds.size())}, bounds);
    if (goes_on) in.initial_state = normal(s.states());
    ScanTensors all;
    all.forward = {.in = in, .y = pool_.full(s.x(), 7.0)};
    all.backward = {.in = in,
                    .dy = normal(s.x(), act),
                    .dx = apart(s.x()),
                    .db = apart(s.b()),
                    .dc = apart(s.b()),
                    .ddt = apart({s.rows(), s.heads}),
                    .ddt_bias = normal({s.heads}),
                    .da_log = normal({s.heads}),
                    .dd = normal({s.heads})};
    if (goes_on) {
      all.forward.final_state = pool_.full(s.states(), 7.0);
      all.backward.dfinal_state = normal(s.states());
      all.backward.dinitial_state = pool_.full(s.states(), 7.0);
    }
    return all;
  }
  // The same elsewhere: move_act and move_stat of each tensor.
  template <class MoveAct, class MoveStat>
  static ScanTensors moved(const ScanTensors& from, const MoveAct& move_act, const MoveStat& move_stat) {
    ScanTensors to = from;
    SsdInputs& in = to.forward.in;
    for (Tensor* each : {&in.x, &in.b, &in.c, &in.dt, &to.forward.y, &to.backward.dy, &to.backward.dx, &to.backward.db,
                         &to.backward.dc, &to.backward.ddt}) {
      *each = move_act(*each);
    }
    for (Tensor* each : {&in.dt_bias, &in.a_log, &in.d, &in.cu_seqlens, &in.initial_state, &to.forward.final_state,
                         &to.backward.dfinal_state, &to.backward.ddt_bias, &to.backward.da_log, &to.backward.dd,
                         &to.backward.dinitial_state}) {
      *each = move_stat(*each);
    }
    to.backward.in = in;
    return to;
  }
  ScanTensors to_device(const ScanTensors& from, DType act) {
    return moved(
        from, [&](const Tensor& x) { return up(x, act); }, [&](const Tensor& x) { return up(x); });
  }
  // In F64, for the CPU.
  ScanTensors to_exact(const ScanTensors& from) {
    const auto widen = [&](const Tensor& x) {
      if (!x.defined() || x.dtype() == DType::kI32) return x;
      const Tensor wide = exact_.zeros(x.shape());
      for (int64_t i = 0; i < x.num_elements(); ++i) set(wide, i, get(x, i));
      return wide;
    };
    return moved(from, widen, widen);
  }

  void compare(DType act, const ScanSizes& s, const std::vector<double>& bounds = {}, bool goes_on = false) {
    SCOPED_TRACE(fmt::format("{}: {} x {} tokens, {} heads of {}, {} groups, {} states, chunks of {}{}{}",
                             dtype_name(act), s.seqs, s.tokens, s.heads, s.head_dim, s.groups, s.state, s.chunk,
                             bounds.empty() ? "" : ", documents", goes_on ? ", goes on" : ""));
    const ScanTensors here = make(act, s, bounds, goes_on), exact = to_exact(here), there = to_device(here, act);
    cpu(DType::kF64).ssd_forward(exact.forward);
    cpu(DType::kF64).ssd_backward(exact.backward);
    run([&](Ops& ops) { ops.ssd_forward(there.forward); });
    run([&](Ops& ops) { ops.ssd_backward(there.backward); });
    const auto expected = exact.results(), actual = there.results();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(worst_error(down(actual[i].second), expected[i].second), act == DType::kBF16 ? 2e-2 : 1e-4)
          << expected[i].first;
    }
  }

  TensorPool exact_{DType::kF64};
};

TEST_F(CudaSsd, IsThatOfTheCpu) {
  for (const DType act : kActDTypes) {
    for (const int64_t tokens : {1, 127, 128, 129, 1000}) {
      compare(act, {.tokens = tokens, .heads = 4, .head_dim = 5, .groups = 2, .state = 6, .chunk = 128});
      compare(act, {.tokens = tokens, .heads = 2, .head_dim = 64, .groups = 1, .state = 128, .chunk = 128});
    }
    compare(act, {.tokens = 8192, .heads = 2, .head_dim = 64, .groups = 1, .state = 128, .chunk = 128});
  }
}

TEST_F(CudaSsd, IsThatOfTheCpuInAnySizes) {
  for (const DType act : kActDTypes) {
    for (const int64_t chunk : {1, 3, 64, 100, 256}) {
      compare(act, {.seqs = 2, .tokens = 300, .heads = 6, .head_dim = 24, .groups = 3, .state = 20, .chunk = chunk});
    }
    compare(act, {.tokens = 300, .heads = 4, .head_dim = 128, .groups = 2, .state = 64, .chunk = 128});
    compare(act, {.tokens = 300, .heads = 2, .head_dim = 72, .groups = 2, .state = 136, .chunk = 256});
  }
}

TEST_F(CudaSsd, IsThatOfTheCpuWithDocumentsAndStatesElsewhere) {
  const std::vector<double> bounds{0, 0, 1, 64, 257, 300, 300, 301, 450, 600, 600, 600};
  for (const DType act : kActDTypes) {
    for (const bool goes_on : {false, true}) {
      for (const int64_t chunk : {8, 128}) {
        compare(act, {.seqs = 2, .tokens = 300, .heads = 4, .head_dim = 10, .groups = 2, .state = 6, .chunk = chunk},
                bounds, goes_on);
      }
      compare(act, {.seqs = 2, .tokens = 300, .heads = 2, .head_dim = 64, .groups = 1, .state = 128, .chunk = 128},
              bounds, goes_on);
    }
  }
}

// Where softplus is linear, and where decays and steps vanish.
TEST_F(CudaSsd, ExtremeSteps) {
  for (const DType act : kActDTypes) {
    const ScanSizes sizes{.tokens = 200, .heads = 2, .head_dim = 64, .groups = 1, .state = 128, .chunk = 128};
    const ScanTensors here = make(act, sizes, {}, false);
    for (int64_t t = 0; t < sizes.tokens; ++t) set(here.forward.in.dt, 2 * t, t % 7 == 3 ? 30.0 : -40.0);
    set(here.forward.in.dt, 101, 904.0);
    const ScanTensors exact = to_exact(here), there = to_device(here, act);
    cpu(DType::kF64).ssd_forward(exact.forward);
    cpu(DType::kF64).ssd_backward(exact.backward);
    run([&](Ops& ops) { ops.ssd_forward(there.forward); });
    run([&](Ops& ops) { ops.ssd_backward(there.backward); });
    const double tolerance = act == DType::kBF16 ? 2e-2 : 1e-4;
    EXPECT_LE(worst_error(down(there.forward.y), exact.forward.y), tolerance);
    EXPECT_LE(worst_error(down(there.backward.dx), exact.backward.dx), tolerance);
    EXPECT_LE(worst_error(down(there.backward.db), exact.backward.db), tolerance);
    for (const double value : values(down(there.backward.ddt))) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_F(CudaSsd, HasTheSameBitsTwice) {
  for (const DType act : kActDTypes) {
    const ScanSizes sizes{
        .seqs = 2, .tokens = 400, .heads = 8, .head_dim = 64, .groups = 2, .state = 128, .chunk = 128};
    const ScanTensors here = make(act, sizes, {0, 170, 400, 800}, true);
    const ScanTensors first = to_device(here, act), second = to_device(here, act);
    for (const ScanTensors* each : {&first, &second}) {
      run([&](Ops& ops) { ops.ssd_forward(each->forward); });
      run([&](Ops& ops) { ops.ssd_backward(each->backward); });
    }
    const auto one = first.results(), two = second.results();
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(values(down(one[i].second)), values(down(two[i].second))) << one[i].first;
    }
  }
}

// What one document has is nowhere in the next, though they share tiles; nor does it matter where that lies.
TEST_F(CudaSsd, DocumentsDoNotTouch) {
  for (const DType act : kActDTypes) {
    for (const ScanSizes& packed :
         {ScanSizes{.tokens = 340, .heads = 4, .head_dim = 24, .groups = 2, .state = 20, .chunk = 128},
          ScanSizes{.tokens = 340, .heads = 4, .head_dim = 64, .groups = 2, .state = 128, .chunk = 128}}) {
      constexpr int64_t kCut = 150;
      const ScanTensors here = make(act, packed, {0, kCut, static_cast<double>(packed.tokens)}, false);
      const auto run_with = [&](double poison) {
        const SsdInputs& in = here.forward.in;
        for (const Tensor& rows : {in.x, in.b, in.c, in.dt, here.backward.dy}) {
          for (int64_t i = 0; i < kCut * rows.shape().row_elements(); ++i) set(rows, i, poison);
        }
        const ScanTensors there = to_device(here, act);
        run([&](Ops& ops) { ops.ssd_forward(there.forward); });
        run([&](Ops& ops) { ops.ssd_backward(there.backward); });
        return there;
      };
      const ScanTensors quiet = run_with(0.25), loud = run_with(std::nan(""));
      ScanTensors alone = quiet;
      const auto second = [&](const Tensor& rows) { return rows.rows(kCut, packed.tokens); };
      alone.forward.in.seq_len = packed.tokens - kCut;
      alone.forward.in.cu_seqlens = {};
      SsdInputs& in = alone.forward.in;
      for (Tensor* each : {&in.x, &in.b, &in.c, &in.dt, &alone.backward.dy}) *each = second(*each);
      alone.backward.in = in;
      for (Tensor* each :
           {&alone.forward.y, &alone.backward.dx, &alone.backward.db, &alone.backward.dc, &alone.backward.ddt}) {
        *each = tensors_.allocate(act, second(*each).shape());
      }
      run([&](Ops& ops) { ops.ssd_forward(alone.forward); });
      run([&](Ops& ops) { ops.ssd_backward(alone.backward); });
      const auto rows_of = [](const ScanTensors& of) {
        return std::array{of.forward.y, of.backward.dx, of.backward.db, of.backward.dc, of.backward.ddt};
      };
      for (size_t i = 0; i < rows_of(quiet).size(); ++i) {
        const std::vector<double> expected = values(down(second(rows_of(quiet)[i])));
        EXPECT_EQ(expected, values(down(second(rows_of(loud)[i])))) << i;
        EXPECT_EQ(expected, values(down(rows_of(alone)[i]))) << i;
      }
    }
  }
}

// Both parts of a sequence cut at a chunk's end have the bits of the whole, forward; F32, whose states are not rounded
// on the way.
TEST_F(CudaSsd, ASequenceGoesOnElsewhere) {
  const ScanSizes sizes{.tokens = 256, .heads = 2, .head_dim = 24, .groups = 1, .state = 20, .chunk = 64};
  const ScanTensors whole = to_device(make(DType::kF32, sizes, {}, false), DType::kF32);
  gpu().ssd_forward(whole.forward);
  Tensor state;
  for (const int64_t begin : {0, 128}) {
    SsdForward part = whole.forward;
    part.in.seq_len = 128;
    for (Tensor* each : {&part.in.x, &part.in.b, &part.in.c, &part.in.dt}) *each = each->rows(begin, begin + 128);
    part.in.initial_state = state;
    part.y = tensors_.allocate(DType::kF32, {128, sizes.heads, sizes.head_dim});
    part.final_state = tensors_.allocate(DType::kF32, sizes.states());
    gpu().ssd_forward(part);
    state = part.final_state;
    EXPECT_TRUE(same_bits(down(part.y), down(whole.forward.y.rows(begin, begin + 128)))) << begin;
  }
}

// Generation in passes of any number of rows of two slots, whose memory held something else before.
TEST_F(CudaSsd, CachedRowsAreThoseOfForward) {
  for (const DType act : kActDTypes) {
    for (const ScanSizes& sizes :
         {ScanSizes{.tokens = 45, .heads = 6, .head_dim = 20, .groups = 2, .state = 24, .chunk = 16},
          ScanSizes{.tokens = 290, .heads = 2, .head_dim = 64, .groups = 1, .state = 128, .chunk = 128}}) {
      SCOPED_TRACE(fmt::format("{}, chunks of {}", dtype_name(act), sizes.chunk));
      const ScanTensors all = to_device(make(act, sizes, {}, false), act);
      const SsdInputs& in = all.forward.in;
      run([&](Ops& ops) { ops.ssd_forward(all.forward); });
      const int64_t Q = sizes.chunk, H = sizes.heads, P = sizes.head_dim, G = sizes.groups, N = sizes.state;
      const Tensor states = up(pool_.full({3, H, P, N}, std::nan("")));
      const Tensor open_x = up(pool_.full({3, Q, H * P}, std::nan("")), act);
      const Tensor open_b = up(pool_.full({3, Q, G * N}, std::nan("")), act);
      const Tensor open_step = up(pool_.full({3, Q, H}, std::nan("")));
      int64_t done = 0;
      for (int64_t pass = 0; done < sizes.tokens; ++pass) {
        // The same sequence in slots 2 and 0, row by row, and a row of none behind them.
        const int64_t count =
            std::min(std::array<int64_t, 6>{1, 3, 30, 1, 2, 150}[static_cast<size_t>(pass % 6)], sizes.tokens - done);
        const int64_t rows = 2 * count + 1;
        std::vector<double> slots, positions;
        const auto doubled = [&](const Tensor& from) {
          Shape shape = from.shape().rank() == 3 ? Shape{rows, from.dim(1), from.dim(2)} : Shape{rows, from.dim(1)};
          const Tensor to = tensors_.allocate(act, shape);
          for (int64_t t = 0; t < rows; ++t) {
            copy_row(from, t == 2 * count ? done : done + t / 2, to, t);
          }
          return to;
        };
        for (int64_t t = 0; t < rows; ++t) {
          slots.push_back(t == 2 * count ? -1 : t % 2 == 0 ? 2 : 0);
          positions.push_back(static_cast<double>(done + t / 2));
        }
        const Tensor y = up(pool_.full({rows, H, P}, 7.0), act);
        const CachedSsd args{.x = doubled(in.x),
                             .b = doubled(in.b),
                             .c = doubled(in.c),
                             .dt = doubled(in.dt),
                             .dt_bias = in.dt_bias,
                             .a_log = in.a_log,
                             .d = in.d,
                             .slots = up(pool_.ints({rows}, slots)),
                             .positions = up(pool_.ints({rows}, positions)),
                             .states = states,
                             .open_x = open_x,
                             .open_b = open_b,
                             .open_step = open_step,
                             .y = y};
        run([&](Ops& ops) { ops.cached_ssd(args); });
        const Tensor out = down(y), expected = down(all.forward.y.rows(done, done + count));
        for (int64_t t = 0; t < 2 * count; ++t) {
          if (act == DType::kF32) {
            EXPECT_TRUE(same_bits(out[t], expected[t / 2])) << done + t / 2;
          } else {
            EXPECT_LE(worst_error(out[t], expected[t / 2]), 2e-2) << done + t / 2;
          }
        }
        EXPECT_EQ(values(out[2 * count]), std::vector<double>(static_cast<size_t>(H * P), 0.0));
        done += count;
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
