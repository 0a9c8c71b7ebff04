// The gated delta rule: against the CPU in double precision, the same bits twice, documents apart, generation against
// training.
#include <array>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct RuleSizes {
  int64_t seqs = 1, tokens = 8, groups = 1, key_dim = 3, heads = 2, value_dim = 4;

  int64_t rows() const { return seqs * tokens; }
  Shape keys() const { return {rows(), groups, key_dim}; }
  Shape values() const { return {rows(), heads, value_dim}; }
  Shape gates() const { return {rows(), heads}; }
  Shape states() const { return {seqs, heads, key_dim, value_dim}; }
};

// What a delta rule reads and writes, on one device. Rows lie apart where they may, as in a layer.
struct RuleTensors {
  DeltaRuleForward forward;
  DeltaRuleBackward backward;

  // Everything that is written, by name.
  std::vector<std::pair<std::string, Tensor>> results() const {
    std::vector<std::pair<std::string, Tensor>> all{{"y", forward.y},
                                                    {"dq", backward.dq},
                                                    {"dk", backward.dk},
                                                    {"dv", backward.dv},
                                                    {"db", backward.db},
                                                    {"da", backward.da},
                                                    {"ddt_bias", backward.ddt_bias},
                                                    {"da_log", backward.da_log}};
    if (forward.final_state.defined()) {
      all.emplace_back("final_state", forward.final_state);
      all.emplace_back("dinitial_state", backward.dinitial_state);
    }
    return all;
  }
};

class CudaDeltaRule : public CudaTest {
 protected:
  CudaDeltaRule() : CudaTest(0, int64_t{320} << 20) {}

  // In F32, of values that `act` can hold.
  RuleTensors make(DType act, const RuleSizes& s, const std::vector<double>& bounds = {}, bool goes_on = false) {
    const auto apart = [&](Shape shape, double mean = 0.0) {
      const int64_t beside = shape.row_elements() % 8 == 0 ? 8 : 3;
      return pool_.apart(normal(shape, act, 1.0, mean), beside);
    };
    DeltaRuleInputs in{.num_seqs = s.seqs,
                       .seq_len = s.tokens,
                       .q = apart(s.keys()),
                       .k = apart(s.keys(), 0.3),  // keys that are like each other, as behind SiLU
                       .v = apart(s.values()),
                       .b = apart(s.gates()),
                       .a = apart(s.gates()),
                       .dt_bias = normal({s.heads}, DType::kF32, 0.5, -2.0),
                       .a_log = normal({s.heads}, DType::kF32, 0.5, 0.5)};
    if (!bounds.empty()) in.cu_seqlens = pool_.ints({static_cast<int64_t>(bounds.size())}, bounds);
    if (goes_on) in.initial_state = normal(s.states());
    RuleTensors all;
    all.forward = {.in = in, .y = pool_.full(s.values(), 7.0)};
    all.backward = {.in = in,
                    .dy = normal(s.values(), act),
                    .dq = apart(s.keys()),
                    .dk = apart(s.keys()),
                    .dv = apart(s.values()),
                    .db = apart(s.gates()),
                    .da = apart(s.gates()),
                    .ddt_bias = normal({s.heads}),
                    .da_log = normal({s.heads})};
    if (goes_on) {
      all.forward.final_state = pool_.full(s.states(), 7.0);
      all.backward.dfinal_state = normal(s.states());
      all.backward.dinitial_state = pool_.full(s.states(), 7.0);
    }
    return all;
  }
  // The same elsewhere: move_act and move_stat of each tensor.
  template <class MoveAct, class MoveStat>
  static RuleTensors moved(const RuleTensors& from, const MoveAct& move_act, const MoveStat& move_stat) {
    RuleTensors to = from;
    DeltaRuleInputs& in = to.forward.in;
    for (Tensor* each : {&in.q, &in.k, &in.v, &in.b, &in.a, &to.forward.y, &to.backward.dy, &to.backward.dq,
                         &to.backward.dk, &to.backward.dv, &to.backward.db, &to.backward.da}) {
      *each = move_act(*each);
    }
    for (Tensor* each :
         {&in.dt_bias, &in.a_log, &in.cu_seqlens, &in.initial_state, &to.forward.final_state, &to.backward.dfinal_state,
          &to.backward.ddt_bias, &to.backward.da_log, &to.backward.dinitial_state}) {
      *each = move_stat(*each);
    }
    to.backward.in = in;
    return to;
  }
  RuleTensors to_device(const RuleTensors& from, DType act) {
    return moved(
        from, [&](const Tensor& x) { return up(x, act); }, [&](const Tensor& x) { return up(x); });
  }
  // In F64, for the CPU.
  RuleTensors to_exact(const RuleTensors& from) {
    const auto widen = [&](const Tensor& x) {
      if (!x.defined() || x.dtype() == DType::kI32) return x;
      const Tensor wide = exact_.zeros(x.shape());
      for (int64_t i = 0; i < x.num_elements(); ++i) set(wide, i, get(x, i));
      return wide;
    };
    return moved(from, widen, widen);
  }
  void run_both(const RuleTensors& of) {
    run([&](Ops& ops) { ops.delta_rule_forward(of.forward); });
    run([&](Ops& ops) { ops.delta_rule_backward(of.backward); });
  }
  static void run_on_cpu(const RuleTensors& of) {
    cpu(DType::kF64).delta_rule_forward(of.forward);
    cpu(DType::kF64).delta_rule_backward(of.backward);
  }

  // Of the largest value. BF16: some six operands one after the other are rounded, by 2^-9 each, and their errors add
  // up over tokens that are like each other; a chunk's model in double precision has 7e-3 at most. F32: sums of
  // thousands of terms of either sign.
  static double tolerance_of(DType act) { return act == DType::kBF16 ? 2e-2 : 1e-4; }

  void compare(DType act, const RuleSizes& s, const std::vector<double>& bounds = {}, bool goes_on = false) {
    SCOPED_TRACE(fmt::format("{}: {} x {} tokens, {} heads of {}, {} of keys of {}{}{}", dtype_name(act), s.seqs,
                             s.tokens, s.heads, s.value_dim, s.groups, s.key_dim, bounds.empty() ? "" : ", documents",
                             goes_on ? ", goes on" : ""));
    const RuleTensors here = make(act, s, bounds, goes_on), exact = to_exact(here), there = to_device(here, act);
    run_on_cpu(exact);
    run_both(there);
    const auto expected = exact.results(), actual = there.results();
    double squares = 0;
    for (const double da : values(exact.backward.da)) squares += da * da;
    for (size_t i = 0; i < expected.size(); ++i) {
      // Sums over tokens are what is left of terms of either sign, whose errors are independent.
      const bool is_sum = expected[i].second.shape() == Shape{s.heads};
      EXPECT_LE(worst_error(down(actual[i].second), expected[i].second, is_sum ? std::sqrt(squares) : 1e-30),
                tolerance_of(act))
          << expected[i].first;
    }
  }

  TensorPool exact_{DType::kF64};
};

TEST_F(CudaDeltaRule, IsThatOfTheCpu) {
  for (const DType act : kActDTypes) {
    for (const int64_t tokens : {1, 63, 64, 65, 127, 128, 129}) {
      compare(act, {.tokens = tokens, .groups = 2, .key_dim = 20, .heads = 4, .value_dim = 10});
      compare(act, {.tokens = tokens, .groups = 1, .key_dim = 128, .heads = 2, .value_dim = 128});
    }
    compare(act, {.tokens = 1000, .groups = 1, .key_dim = 128, .heads = 2, .value_dim = 128});
  }
}

TEST_F(CudaDeltaRule, IsThatOfTheCpuInAnySizes) {
  for (const DType act : kActDTypes) {
    compare(act, {.seqs = 2, .tokens = 200, .groups = 3, .key_dim = 24, .heads = 6, .value_dim = 20});
    compare(act, {.tokens = 200, .groups = 2, .key_dim = 64, .heads = 2, .value_dim = 72});
    compare(act, {.tokens = 200, .groups = 1, .key_dim = 100, .heads = 3, .value_dim = 136});
    compare(act, {.seqs = 3, .tokens = 70, .groups = 1, .key_dim = 5, .heads = 1, .value_dim = 1});
  }
  // More blocks than a GPU has multiprocessors.
  compare(DType::kBF16, {.seqs = 5, .tokens = 150, .groups = 16, .key_dim = 128, .heads = 32, .value_dim = 128});
}

TEST_F(CudaDeltaRule, IsThatOfTheCpuWithDocumentsAndStatesElsewhere) {
  const std::vector<double> bounds{0, 0, 1, 64, 257, 300, 300, 301, 450, 600, 600, 600};
  for (const DType act : kActDTypes) {
    for (const bool goes_on : {false, true}) {
      compare(act, {.seqs = 2, .tokens = 300, .groups = 2, .key_dim = 10, .heads = 4, .value_dim = 6}, bounds, goes_on);
      compare(act, {.seqs = 2, .tokens = 300, .groups = 1, .key_dim = 128, .heads = 2, .value_dim = 128}, bounds,
              goes_on);
    }
  }
}

// Where softplus is linear, where decays vanish, gates are open and shut, and keys are 0.
TEST_F(CudaDeltaRule, Extremes) {
  for (const DType act : kActDTypes) {
    const RuleSizes sizes{.tokens = 200, .groups = 1, .key_dim = 128, .heads = 2, .value_dim = 64};
    const RuleTensors here = make(act, sizes);
    const DeltaRuleInputs& in = here.forward.in;
    for (int64_t t = 0; t < sizes.tokens; ++t) {
      set(in.a, 2 * t, t % 7 == 3 ? 30.0 : -40.0);
      if (t % 5 == 2) set(in.b, 2 * t + 1, t % 2 == 0 ? 80.0 : -80.0);
    }
    set(in.a, 101, 904.0);
    for (int64_t i = 0; i < sizes.key_dim; ++i) set(in.k, 33 * sizes.key_dim + i, 0.0);
    const RuleTensors exact = to_exact(here), there = to_device(here, act);
    run_on_cpu(exact);
    run_both(there);
    for (const auto& [actual, expected] : {std::pair{there.forward.y, exact.forward.y},
                                           {there.backward.dq, exact.backward.dq},
                                           {there.backward.dv, exact.backward.dv},
                                           {there.backward.db, exact.backward.db}}) {
      EXPECT_LE(worst_error(down(actual), expected), tolerance_of(act));
    }
    // A key of zeros has a norm of 1e3, which multiplies its gradient and that of no other.
    for (const Tensor& gradient : {there.backward.dk, there.backward.da, there.backward.ddt_bias}) {
      for (const double value : values(down(gradient))) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST_F(CudaDeltaRule, HasTheSameBitsTwice) {
  for (const DType act : kActDTypes) {
    const RuleSizes sizes{.seqs = 2, .tokens = 400, .groups = 2, .key_dim = 128, .heads = 4, .value_dim = 128};
    const RuleTensors here = make(act, sizes, {0, 170, 400, 800}, true);
    const RuleTensors first = to_device(here, act), second = to_device(here, act);
    for (const RuleTensors* each : {&first, &second}) run_both(*each);
    const auto one = first.results(), two = second.results();
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(values(down(one[i].second)), values(down(two[i].second))) << one[i].first;
    }
  }
}

constexpr Tensor DeltaRuleInputs::*kRuleRows[] = {&DeltaRuleInputs::q, &DeltaRuleInputs::k, &DeltaRuleInputs::v,
                                                  &DeltaRuleInputs::b, &DeltaRuleInputs::a};

// What one document has is nowhere in the next; nor does it matter where that lies.
TEST_F(CudaDeltaRule, DocumentsDoNotTouch) {
  constexpr int64_t kCut = 90;
  for (const DType act : kActDTypes) {
    for (const RuleSizes& packed :
         {RuleSizes{.tokens = 240, .groups = 2, .key_dim = 24, .heads = 4, .value_dim = 20},
          RuleSizes{.tokens = 240, .groups = 1, .key_dim = 128, .heads = 2, .value_dim = 128}}) {
      const RuleTensors here = make(act, packed, {0, kCut, static_cast<double>(packed.tokens)});
      const auto run_with = [&](double poison) {
        const auto spoil = [&](const Tensor& rows) {
          for (int64_t i = 0; i < kCut * rows.shape().row_elements(); ++i) set(rows, i, poison);
        };
        for (const auto& member : kRuleRows) spoil(here.forward.in.*member);
        spoil(here.backward.dy);
        const RuleTensors there = to_device(here, act);
        run_both(there);
        return there;
      };
      const RuleTensors quiet = run_with(0.25), loud = run_with(std::nan(""));
      RuleTensors alone = quiet;
      const auto second = [&](const Tensor& rows) { return rows.rows(kCut, packed.tokens); };
      alone.forward.in.seq_len = packed.tokens - kCut;
      alone.forward.in.cu_seqlens = {};
      for (const auto& member : kRuleRows) alone.forward.in.*member = second(alone.forward.in.*member);
      alone.backward.in = alone.forward.in;
      alone.backward.dy = second(alone.backward.dy);
      DeltaRuleBackward& of = alone.backward;
      for (Tensor* each : {&alone.forward.y, &of.dq, &of.dk, &of.dv, &of.db, &of.da}) {
        *each = tensors_.allocate(act, second(*each).shape());
      }
      run_both(alone);
      const auto rows_of = [](const RuleTensors& each) {
        const DeltaRuleBackward& backward = each.backward;
        return std::array{each.forward.y, backward.dq, backward.dk, backward.dv, backward.db, backward.da};
      };
      for (size_t i = 0; i < rows_of(quiet).size(); ++i) {
        const std::vector<double> expected = values(down(second(rows_of(quiet)[i])));
        EXPECT_EQ(expected, values(down(second(rows_of(loud)[i])))) << i;
        EXPECT_EQ(expected, values(down(rows_of(alone)[i]))) << i;
      }
    }
  }
}

// Forward in F32 has the bits of the whole wherever a sequence is cut.
TEST_F(CudaDeltaRule, ASequenceGoesOnElsewhere) {
  constexpr int64_t kCut = 77;
  const RuleSizes sizes{.tokens = 200, .groups = 1, .key_dim = 24, .heads = 2, .value_dim = 20};
  const RuleTensors whole = to_device(make(DType::kF32, sizes), DType::kF32);
  gpu().delta_rule_forward(whole.forward);
  Tensor state;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, kCut}, {kCut, 200}}) {
    DeltaRuleForward part = whole.forward;
    part.in.seq_len = end - begin;
    for (const auto& member : kRuleRows) part.in.*member = (part.in.*member).rows(begin, end);
    part.in.initial_state = state;
    part.y = tensors_.allocate(DType::kF32, {end - begin, sizes.heads, sizes.value_dim});
    part.final_state = tensors_.allocate(DType::kF32, sizes.states());
    gpu().delta_rule_forward(part);
    state = part.final_state;
    EXPECT_TRUE(same_bits(down(part.y), down(whole.forward.y.rows(begin, end)))) << begin;
  }
}

// Generation in passes of any number of rows of two slots, whose memory held something else before.
TEST_F(CudaDeltaRule, CachedRowsAreThoseOfForward) {
  for (const DType act : kActDTypes) {
    for (const RuleSizes& sizes :
         {RuleSizes{.tokens = 45, .groups = 2, .key_dim = 20, .heads = 6, .value_dim = 24},
          RuleSizes{.tokens = 190, .groups = 1, .key_dim = 128, .heads = 2, .value_dim = 128}}) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", dtype_name(act), sizes.tokens));
      const RuleTensors all = to_device(make(act, sizes), act);
      const DeltaRuleInputs& in = all.forward.in;
      run([&](Ops& ops) { ops.delta_rule_forward(all.forward); });
      const Tensor states = up(pool_.full({3, sizes.heads, sizes.key_dim, sizes.value_dim}, std::nan("")));
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
        const Tensor y = up(pool_.full({rows, sizes.heads, sizes.value_dim}, 7.0), act);
        const CachedDeltaRule args{.q = doubled(in.q),
                                   .k = doubled(in.k),
                                   .v = doubled(in.v),
                                   .b = doubled(in.b),
                                   .a = doubled(in.a),
                                   .dt_bias = in.dt_bias,
                                   .a_log = in.a_log,
                                   .slots = up(pool_.ints({rows}, slots)),
                                   .positions = up(pool_.ints({rows}, positions)),
                                   .states = states,
                                   .y = y};
        run([&](Ops& ops) { ops.cached_delta_rule(args); });
        const Tensor out = down(y), expected = down(all.forward.y.rows(done, done + count));
        for (int64_t t = 0; t < 2 * count; ++t) {
          if (act == DType::kF32) {
            EXPECT_TRUE(same_bits(out[t], expected[t / 2])) << done + t / 2;
          } else {
            EXPECT_LE(worst_error(out[t], expected[t / 2]), 2e-2) << done + t / 2;
          }
        }
        EXPECT_EQ(values(out[2 * count]), std::vector<double>(static_cast<size_t>(sizes.heads * sizes.value_dim), 0.0));
        done += count;
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
