// What contracts ask of arguments: the same of every device, whether it computes or only counts.
#include "ops/contract_checks.h"

namespace nmoe::test {
namespace {

TEST_F(ContractChecks, Tensors) {
  expect(&Ops::fill, {.x = floats({3})}, {[](auto& a) { a.x = {}; }});
  expect(&Ops::fill_truncated_normal, {.x = floats({3})}, {[](auto& a) { a.x = ints({3}); }});
  expect(&Ops::copy, {floats({3}), floats({3})},
         {[](auto& a) { a.source = floats({4}); }, [](auto& a) { a.destination = ints({3}); }});
  expect(&Ops::split_weight, {floats({3}), floats({3}), {}},
         {[](auto& a) { a.w = floats({4}); }, [](auto& a) { a.low = of(DType::kI16, {3}); }});
  expect(&Ops::join_weight, {floats({3}), {}, floats({3})}, {[](auto& a) { a.master = floats({4}); }});
  expect(&Ops::add_time, {.sum = doubles({1}), .begun = of(DType::kI64, {1})},
         {[](auto& a) { a.begun = doubles({1}); }, [](auto& a) { a.sum = doubles({2}); }});
  expect(&Ops::sum, {floats({5}), doubles({1})}, {[](auto& a) { a.out = floats({1}); }});
  expect(&Ops::sums_of_squares, {.all = {{floats({5}), doubles({1})}}},
         {[](auto& a) { a.all[0].x = ints({5}); }, [](auto& a) { a.all[0].parts = floats({2}); }});
  expect(&Ops::sum_in_order, {doubles({5}), doubles({1}), ints({5})}, {[](auto& a) { a.order = ints({4}); }});
  expect(&Ops::count_non_finite, {floats({5}), ints({1})}, {[](auto& a) { a.out = doubles({1}); }});
  expect(&Ops::clip_scale, {doubles({1}), doubles({1}), 1.0, doubles({1}), ints({1})},
         {[](auto& a) { a.stopped = doubles({1}); }, [](auto& a) { a.max_norm = -1; }});
}

TEST_F(ContractChecks, Rounding) {
  expect(&Ops::abs_max, {.x = floats({2, 3, 4}), .amax = floats({2})}, {[](auto& a) { a.num_rows = ints({1}); }});
  expect(&Ops::quantize, quantize_rows(floats({3, 130}), codes(3, 130)),
         {[](auto& a) {
            a.scales = of(DType::kU8, {1, 3, 1});
          },
          [](auto& a) { a.amax = floats({1}); }});
  expect(&Ops::widen_rows, {.codes = codes(3, 130), .x = floats({3, 130})},
         {[](auto& a) { a.codes = codes(3, 128); }, [](auto& a) { a.codes = {}; }});
  expect(&Ops::measure_rounding, {.x = floats({1, 3, 130}), .counts = doubles({5})},
         {[](auto& a) { a.index = ints({3}); }, [](auto& a) { a.counts = doubles({4}); }});
  expect(&Ops::measure_product, {.x = floats({3, 130}), .w = floats({1, 7, 130}), .counts = doubles({5})},
         {[](auto& a) { a.over_out = true; }, [](auto& a) { a.format = OperandFormat::kAct; }});
}

TEST_F(ContractChecks, VocabularyAndNorms) {
  expect(&Ops::embedding_forward, {ints({3}), floats({9, 4}), floats({3, 4})},
         {[](auto& a) {
            a.y = floats({3, 5});
          },
          [](auto& a) { a.ids = floats({3}); }});
  expect(&Ops::embedding_backward, {ints({3}), floats({3, 4}), floats({9, 4})}, {[](auto& a) {
    a.dtable = of(DType::kBF16, {9, 4});
  }});
  expect(&Ops::head_loss,
         {.x = floats({3, 4}),
          .w = floats({9, 4}),
          .targets = ints({3}),
          .grad_scale = doubles({1}),
          .losses = floats({3}),
          .dx = floats({3, 4}),
          .dw = floats({9, 4}),
          .predictions = {}},
         {[](auto& a) { a.targets = ints({2}); },
          [](auto& a) {
            a.dw = floats({9, 5});
          },
          [](auto& a) { a.dx = {}; }, [](auto& a) { a.predictions = ints({4}); }});
  expect(&Ops::bias_forward, {.x = floats({3, 4}), .bias = floats({4}), .y = floats({3, 4})},
         {[](auto& a) { a.bias = floats({3}); },
          [](auto& a) {
            a.x = floats({4, 4});
          },
          [](auto& a) { a.bias = of(DType::kBF16, {4}); }});
  expect(&Ops::bias_backward, {.dy = floats({3, 4}), .dbias = floats({4})},
         {[](auto& a) { a.dbias = floats({3}); }, [](auto& a) { a.dy = floats({4}); }});
  expect(&Ops::logit_sums, {.logits = floats({3, 9}), .sums = floats({3, 3})},
         {[](auto& a) {
            a.sums = floats({3, 2});
          },
          [](auto& a) {
            a.logits = of(DType::kBF16, {3, 9});
          },
          [](auto& a) {
            a.sums = doubles({3, 3});
          }});
  expect(&Ops::rms_norm_forward, {.x = floats({3, 4}), .gain = floats({4}), .y = floats({3, 4}), .rstd = floats({3})},
         {[](auto& a) { a.gain = floats({3}); }, [](auto& a) { a.y_codes = codes(3, 5); }});
  expect(&Ops::rms_norm_backward,
         {.x = floats({3, 4}),
          .gain = floats({4}),
          .rstd = floats({3}),
          .dy = floats({3, 4}),
          .dx = floats({3, 4}),
          .dgain = floats({4})},
         {[](auto& a) { a.dgain = floats({3}); }, [](auto& a) { a.rstd = floats({4}); }});
}

TEST_F(ContractChecks, Activations) {
  expect(&Ops::activation_forward,
         {.pre = floats({3, 8}), .row_weight = floats({3}), .h = floats({3, 4}), .num_rows = {}},
         {[](auto& a) {
            a.h = floats({3, 8});
          },
          [](auto& a) { a.keeps_h = false; }, [](auto& a) { a.row_weight = floats({4}); },
          [](auto& a) { a.num_rows = ints({3}); },
          [](auto& a) { a.pre_codes = codes(3, 8), a.h_columns = columns(1, 4), a.offsets = ints({2}); }});
  expect(&Ops::activation_backward,
         {.pre = floats({3, 8}),
          .row_weight = floats({3}),
          .dh = floats({3, 4}),
          .dpre = floats({3, 8}),
          .drow_weight = floats({3}),
          .num_rows = {}},
         {[](auto& a) { a.drow_weight = {}; },
          [](auto& a) {
            a.h = floats({4, 4});
          },
          [](auto& a) { a.dpre_codes = codes(3, 4); }});
}

TEST_F(ContractChecks, Products) {
  expect(&Ops::linear_forward, {.x = floats({3, 8}), .w = floats({4, 8}), .y = floats({3, 4}), .addend = {}},
         {[](auto& a) {
            a.w = floats({8, 4});
          },
          [](auto& a) {
            a.addend = floats({3, 3});
          },
          [](auto& a) {
            a.w = of(DType::kBF16, {4, 8});
          },
          [](auto& a) { a.rounding.rows = codes(3, 8); }});
  expect(&Ops::linear_activation_forward,
         {.x = floats({3, 8}), .w = floats({4, 8}), .pre = floats({3, 4}), .h = floats({3, 2})},
         {[](auto& a) {
            a.h = floats({3, 4});
          },
          [](auto& a) { a.kind = Activation::kReluSquared; }});
  expect(&Ops::linear_backward_input, {.dy = floats({3, 4}), .w = floats({4, 8}), .dx = floats({3, 8})}, {[](auto& a) {
    a.dx = floats({3, 4});
  }});
  expect(&Ops::linear_backward_weight, {.x = floats({3, 8}), .dy = floats({3, 4}), .dw = floats({4, 8})},
         {[](auto& a) {
            a.dw = of(DType::kBF16, {4, 8});
          },
          [](auto& a) {
            a.dy = floats({4, 4});
          }});
}

TEST_F(ContractChecks, ProductsOfExperts) {
  const Tensor offsets = ints({3});
  expect(&Ops::grouped_linear_forward,
         {.x = floats({6, 8}), .w = floats({2, 4, 8}), .offsets = offsets, .y = floats({6, 4})},
         {[](auto& a) { a.offsets = ints({4}); },
          [](auto& a) {
            a.y = floats({5, 4});
          },
          [](auto& a) { a.rounding.product_scale = floats({2}), a.rounding.format = OperandFormat::kMxFp8; }});
  expect(&Ops::grouped_linear_backward_input,
         {.dy = floats({6, 4}), .w = floats({2, 4, 8}), .offsets = offsets, .dx = floats({6, 8})}, {[](auto& a) {
           a.dx = floats({6, 4});
         }});
  expect(&Ops::grouped_activation_forward,
         {.x = {floats({5, 8}), ints({6})},
          .w = floats({2, 4, 8}),
          .offsets = offsets,
          .row_weight = floats({6}),
          .pre = floats({6, 4}),
          .h = floats({6, 2})},
         {[](auto& a) {
            a.x = floats({5, 8});
          },
          [](auto& a) {
            a.h = floats({6, 4});
          },
          [](auto& a) { a.row_weight = floats({5}); }, [](auto& a) { a.x.index = floats({6}); },
          [](auto& a) { a.h_columns = columns(9, 2); }});
  expect(&Ops::grouped_activation_backward,
         {.dy = floats({6, 4}),
          .w = floats({2, 4, 3}),
          .offsets = offsets,
          .pre = floats({6, 6}),
          .row_weight = floats({6}),
          .dpre = floats({6, 6}),
          .drow_weight = floats({6})},
         {[](auto& a) { a.drow_weight = {}; },
          [](auto& a) {
            a.dpre = floats({6, 3});
          },
          [](auto& a) { a.dpre_columns = columns(2, 6); },
          [](auto& a) {
            a.h = floats({6, 6});
          },
          [](auto& a) { a.kind = Activation::kReluSquared; }});
  expect(&Ops::expert_bias_backward,
         {.dy = floats({6, 4}),
          .offsets = offsets,
          .bias = {floats({2, 4}), floats({6})},
          .dvalues = floats({2, 4}),
          .drow_weight = floats({6})},
         {[](auto& a) { a.drow_weight = {}; },
          [](auto& a) {
            a.dvalues = floats({2, 5});
          },
          [](auto& a) { a.bias.row_weight = {}; }});
  expect(&Ops::grouped_linear_backward_weight,
         {.x = floats({6, 8}), .dy = floats({6, 4}), .offsets = offsets, .dw = floats({2, 4, 8})},
         {[](auto& a) { a.x = OperandRows(); }, [](auto& a) { a.x_columns = columns(2, 8); },
          [](auto& a) { a.x.index = ints({6}), a.dy.index = ints({6}); },
          [](auto& a) {
            a.squares = doubles({2, 1, 2});
          },
          [](auto& a) {
            a.squares = doubles({2, 1, 1}), a.accumulate = true;
          }});
}

// What is not read may be anything: rows beside codes of their columns.
TEST_F(ContractChecks, ColumnsStandForTheirRows) {
  GroupedLinearBackwardWeight args{.x = of(DType::kBF16, {4, 256}),
                                   .dy = {of(DType::kBF16, {4, 128}), ints({8})},
                                   .offsets = ints({3}),
                                   .dw = floats({2, 128, 256}),
                                   .rounding = {.format = OperandFormat::kFp8},
                                   .x_columns = columns(2, 256)};
  EXPECT_NO_THROW(planned_->ops().grouped_linear_backward_weight(args));
  args.x = {};
  EXPECT_NO_THROW(planned_->ops().grouped_linear_backward_weight(args));
  args.x_columns = columns(3, 256);
  expect_refused(&Ops::grouped_linear_backward_weight, args);
  args.x_columns = {};
  expect_refused(&Ops::grouped_linear_backward_weight, args);
}

// Experts' operations with and without each form of pre-activations and of their gradients, on a device that plans as
// Hopper runs: taken wherever what is wanted has memory, and what is read is there in some form.
class FormsOfRows : public ContractChecks {
 protected:
  static constexpr int64_t kRows = 256, kExperts = 2, kIn = 128, kHidden = 128, kWidth = 2 * kHidden;

  static Tensor act(Shape shape) { return of(DType::kBF16, shape); }
  // Of products of codes, and of values.
  static std::vector<OperandRounding> roundings(int64_t out, int64_t in) {
    const auto across = [](int64_t size) { return (size + 127) / 128; };
    return {{.format = OperandFormat::kFp8,
             .weight = {.values = of(DType::kU8, {kExperts, out, in}),
                        .scales = of(DType::kU8, {kExperts, across(out), across(in)}),
                        .transposed_values = of(DType::kU8, {kExperts, in, out}),
                        .transposed_scales = of(DType::kU8, {kExperts, across(in), across(out)})}},
            {}};
  }
  template <class Arguments>
  void expect_on_hopper(void (Ops::*operation)(const Arguments&), const Arguments& args, bool taken) {
    if (taken) {
      EXPECT_NO_THROW((planned_->ops().*operation)(args));
    } else {
      expect_refused(operation, args);
    }
  }
};

TEST_F(FormsOfRows, OfForward) {
  for (const OperandRounding& rounding : roundings(kWidth, kIn)) {
    for (int forms = 0; forms < 8; ++forms) {
      SCOPED_TRACE(forms);
      const bool has_pre = (forms & 1) != 0, has_codes = (forms & 2) != 0, has_columns = (forms & 4) != 0;
      const GroupedActivationForward args{.x = act({kRows, kIn}),
                                          .w = act({kExperts, kWidth, kIn}),
                                          .offsets = ints({kExperts + 1}),
                                          .row_weight = floats({kRows}),
                                          .pre = has_pre ? act({kRows, kWidth}) : Tensor(),
                                          .h = has_columns ? Tensor() : act({kRows, kHidden}),
                                          .rounding = rounding,
                                          .h_codes = codes(kRows, kHidden),
                                          .h_columns = has_columns ? columns(4, kHidden) : ColumnCodes{},
                                          .pre_codes = has_codes ? codes(kRows, kWidth) : RowCodes{}};
      expect_on_hopper(&Ops::grouped_activation_forward, args, has_columns ? has_pre && !has_codes : forms != 0);
    }
  }
}

TEST_F(FormsOfRows, OfBackward) {
  for (const OperandRounding& rounding : roundings(kIn, kHidden)) {
    for (int forms = 0; forms < 64; ++forms) {
      SCOPED_TRACE(forms);
      const auto has = [&](int form) { return (forms >> form & 1) != 0; };
      const bool pre = has(0), pre_codes = has(1), dpre = has(2), columns_too = has(3), keeps = has(4), h = has(5);
      const GroupedActivationBackward args{.dy = act({kRows, kIn}),
                                           .w = act({kExperts, kIn, kHidden}),
                                           .offsets = ints({kExperts + 1}),
                                           .pre = pre ? act({kRows, kWidth}) : Tensor(),
                                           .row_weight = floats({kRows}),
                                           .dpre = dpre ? act({kRows, kWidth}) : Tensor(),
                                           .drow_weight = floats({kRows}),
                                           .rounding = rounding,
                                           .dpre_codes = codes(kRows, kWidth),
                                           .dpre_columns = columns_too ? columns(4, kWidth) : ColumnCodes{},
                                           .keeps_dpre = keeps,
                                           .h = h ? act({kRows, kHidden}) : Tensor(),
                                           .pre_codes = pre_codes ? codes(kRows, kWidth) : RowCodes{},
                                           .h_columns = h ? ColumnCodes{} : columns(4, kHidden)};
      expect_on_hopper(&Ops::grouped_activation_backward, args,
                       (pre || pre_codes) && (dpre || (columns_too && !keeps)));
    }
  }
}

// What follows that backward: the products that read the gradient.
TEST_F(FormsOfRows, OfProductsOfGradients) {
  for (const OperandRounding& rounding : roundings(kWidth, kIn)) {
    for (int forms = 0; forms < 4; ++forms) {
      SCOPED_TRACE(forms);
      const bool values = (forms & 1) != 0, in_codes = (forms & 2) != 0;
      const bool is_fp8 = rounding.format == OperandFormat::kFp8;
      GroupedLinearBackwardInput input{.dy = values ? act({kRows, kWidth}) : Tensor(),
                                       .w = act({kExperts, kWidth, kIn}),
                                       .offsets = ints({kExperts + 1}),
                                       .dx = act({kRows, kIn}),
                                       .rounding = rounding};
      if (in_codes) input.rounding.rows = codes(kRows, kWidth);
      expect_on_hopper(&Ops::grouped_linear_backward_input, input, in_codes ? is_fp8 : values);
      const GroupedLinearBackwardWeight weight{.x = act({kRows, kIn}),
                                               .dy = values ? OperandRows(act({kRows, kWidth})) : OperandRows(),
                                               .offsets = ints({kExperts + 1}),
                                               .dw = floats({kExperts, kWidth, kIn}),
                                               .rounding = {.format = rounding.format},
                                               .dy_columns = in_codes ? columns(4, kWidth) : ColumnCodes{}};
      expect_on_hopper(&Ops::grouped_linear_backward_weight, weight, in_codes ? is_fp8 : values);
    }
  }
  GroupedLinearBackwardWeight both{.x = {},
                                   .dy = {},
                                   .offsets = ints({kExperts + 1}),
                                   .dw = floats({kExperts, kWidth, kIn}),
                                   .rounding = {.format = OperandFormat::kFp8},
                                   .x_columns = columns(4, kIn),
                                   .dy_columns = columns(4, kWidth)};
  expect_refused(&Ops::grouped_linear_backward_weight, both);
}

// Codes that these would leave unwritten.
TEST_F(FormsOfRows, OfBatchInvariantProducts) {
  GroupedActivationForward args{.x = act({kRows, kIn}),
                                .w = act({kExperts, kWidth, kIn}),
                                .offsets = ints({kExperts + 1}),
                                .row_weight = floats({kRows}),
                                .pre = act({kRows, kWidth}),
                                .h = act({kRows, kHidden})};
  Ops& ops = planned_->ops(Lane::kCompute, Arithmetic::kBatchInvariant);
  EXPECT_NO_THROW(ops.grouped_activation_forward(args));
  args.pre_codes = codes(kRows, kWidth);
  EXPECT_THROW(ops.grouped_activation_forward(args), CheckFailure);
  args.pre_codes = {}, args.h_codes = codes(kRows, kHidden);
  EXPECT_THROW(ops.grouped_activation_forward(args), CheckFailure);
}

// Without row_of nobody would know which rows to write.
TEST_F(ContractChecks, PickedCodesWantRowOf) {
  GroupedActivationForward args{.x = {floats({4, 16}), ints({8})},
                                .w = floats({1, 32, 16}),
                                .offsets = ints({2}),
                                .row_weight = {},
                                .pre = floats({8, 32}),
                                .h = floats({8, 16}),
                                .rounding = {.format = OperandFormat::kFp8, .rows = codes(4, 16)}};
  expect_refused(&Ops::grouped_activation_forward, args);
  args.x.row_of = ints({3, 2});
  expect_refused(&Ops::grouped_activation_forward, args);
  args.x.row_of = ints({4, 2});
  EXPECT_NO_THROW(check(args));
}

TEST_F(ContractChecks, Attention) {
  const AttentionShape shape{.num_seqs = 2, .seq_len = 3};
  const Tensor q = floats({6, 4, 8}), kv = floats({6, 2, 8}), lse = floats({2, 4, 3});
  expect(&Ops::rope_forward, {.x = q, .positions = ints({6}), .cos = floats({9, 4}), .sin = floats({9, 4})},
         {[](auto& a) { a.rope_offset = 1; }, [](auto& a) { a.positions = ints({5}); },
          [](auto& a) {
            a.sin = floats({8, 4});
          }});
  expect(&Ops::attention_forward, {.shape = shape, .q = q, .k = kv, .v = kv, .out = q, .lse = lse},
         {[](auto& a) { a.shape.seq_len = 4; },
          [](auto& a) {
            a.k = floats({6, 3, 8});
          },
          [](auto& a) {
            a.v = floats({6, 2, 7});
          },
          [](auto& a) {
            a.lse = floats({2, 4, 4});
          },
          [](auto& a) { a.shape.cu_seqlens = floats({3}); }});
  expect(&Ops::attention_backward,
         {.shape = shape, .q = q, .k = kv, .v = kv, .out = q, .lse = lse, .dout = q, .dq = q, .dk = kv, .dv = kv},
         {[](auto& a) {
            a.dk = floats({6, 4, 8});
          },
          [](auto& a) {
            a.dout = floats({6, 4, 7});
          },
          [](auto& a) { a.rope.positions = ints({6}); }});
  expect(&Ops::tree_attention,
         {.q = q, .k = kv, .v = kv, .out = q, .positions = ints({6}), .bounds = ints({3}), .parents = ints({3})},
         {[](auto& a) { a.parents = ints({2}); }, [](auto& a) { a.positions = ints({5}); }});
  expect(&Ops::mla_attention_forward,
         {.shape = shape,
          .q = q,
          .kv = floats({6, 4, 11}),
          .k_rope = floats({6, 2}),
          .out = floats({6, 4, 5}),
          .lse = lse},
         {[](auto& a) {
            a.kv = floats({6, 4, 10});
          },
          [](auto& a) {
            a.k_rope = floats({5, 2});
          }});
  expect(&Ops::mla_attention_backward,
         {.shape = shape,
          .q = q,
          .kv = floats({6, 4, 11}),
          .k_rope = floats({6, 2}),
          .out = floats({6, 4, 5}),
          .lse = lse,
          .dout = floats({6, 4, 5}),
          .dq = q,
          .dkv = floats({6, 4, 11}),
          .dk_rope = floats({6, 2})},
         {[](auto& a) {
            a.dk_rope = floats({6, 3});
          },
          [](auto& a) { a.dkv_codes = codes(6, 43); }});
  expect(&Ops::mla_tree_attention,
         {.q = q,
          .kv = floats({6, 4, 11}),
          .k_rope = floats({6, 2}),
          .out = floats({6, 4, 5}),
          .positions = ints({6}),
          .bounds = ints({3}),
          .parents = ints({3})},
         {[](auto& a) { a.bounds = ints({1}), a.parents = ints({1}); }});
}

TEST_F(ContractChecks, Caches) {
  const Tensor slots = ints({3}), positions = ints({3}), pages = ints({2, 4});
  expect(&Ops::cache_write,
         {.rows = floats({3, 4}),
          .slots = slots,
          .positions = positions,
          .pages = pages,
          .cache = floats({5, kPagePositions, 6}),
          .offset = 2},
         {[](auto& a) { a.offset = 3; }, [](auto& a) { a.slots = ints({2}); }, [](auto& a) { a.pages = ints({8}); },
          [](auto& a) {
            a.cache = floats({5, kPagePositions - 1, 6});
          }});
  expect(&Ops::cached_attention,
         {.q = floats({3, 4, 8}),
          .slots = slots,
          .positions = positions,
          .pages = pages,
          .keys = floats({5, kPagePositions, 16}),
          .values = floats({5, kPagePositions, 12}),
          .num_kv_heads = 2,
          .out = floats({3, 4, 6})},
         {[](auto& a) { a.num_kv_heads = 3; }, [](auto& a) { a.values = {}; },
          [](auto& a) {
            a.out = floats({3, 4, 7});
          }});
  expect(&Ops::mla_cached_attention,
         {.q = floats({3, 4, 6}),
          .kv_latent = floats({3, 7}),
          .k_rope = floats({3, 2}),
          .gain = floats({7}),
          .cos = floats({9, 1}),
          .sin = floats({9, 1}),
          .slots = slots,
          .positions = positions,
          .pages = pages,
          .kv_up = floats({36, 7}),
          .cache = floats({5, kPagePositions, 9}),
          .out = floats({3, 4, 5})},
         {[](auto& a) {
            a.kv_up = floats({35, 7});
          },
          [](auto& a) {
            a.cache = floats({5, kPagePositions, 8});
          },
          [](auto& a) {
            a.cos = floats({9, 2});
          }});
  expect(&Ops::mla_expanded_attention,
         {.q = floats({3, 4, 6}),
          .slots = slots,
          .positions = positions,
          .pages = pages,
          .kv = floats({5, kPagePositions, 36}),
          .k_rope = floats({5, kPagePositions, 2}),
          .out = floats({3, 4, 5})},
         {[](auto& a) {
            a.kv = floats({5, kPagePositions, 35});
          },
          [](auto& a) {
            a.k_rope = floats({4, kPagePositions, 2});
          },
          [](auto& a) { a.positions = ints({2}); }});
}

TEST_F(ContractChecks, Routing) {
  const Tensor logits = floats({6, 4}), top_idx = ints({6, 2}), weights = floats({6, 2});
  const MoePlan plan{.offsets = ints({5}), .row_of = ints({6, 2})};
  expect(
      &Ops::router_forward,
      {.rule = {.top_k = 2},
       .loss = {.balance = 1.0, .seq_len = 3},
       .logits = logits,
       .bias = floats({4}),
       .scores = logits,
       .top_idx = top_idx,
       .weights = weights,
       .aux_loss = doubles({2}),
       .entropy = {}},
      {[](auto& a) { a.rule.top_k = 3; }, [](auto& a) { a.rule.num_groups = 3; }, [](auto& a) { a.loss.seq_len = 4; },
       [](auto& a) { a.bias = floats({3}); }, [](auto& a) { a.aux_loss = {}; }});
  expect(&Ops::router_backward,
         {.rule = {.top_k = 2},
          .loss = {},
          .logits = logits,
          .scores = logits,
          .top_idx = top_idx,
          .weights = weights,
          .dweights = weights,
          .dlogits = logits},
         {[](auto& a) {
            a.dweights = floats({6, 3});
          },
          [](auto& a) {
            a.dlogits = floats({6, 3});
          }});
  expect(&Ops::route_tokens,
         {.rule = {.top_k = 2},
          .logits = logits,
          .bias = floats({4}),
          .scores = logits,
          .top_idx = top_idx,
          .weights = weights,
          .plan = plan,
          .row_weight = floats({12})},
         {[](auto& a) { a.plan.offsets = ints({4}); },
          [](auto& a) {
            a.plan.row_of = ints({6, 3});
          }});
  expect(&Ops::router_bias_update, {.counts = ints({4}), .bias = floats({4}), .rate = 0.1, .grad_scale = doubles({1})},
         {[](auto& a) { a.bias = floats({3}); }});
  expect(&Ops::build_moe_plan, {.top_idx = top_idx, .plan = plan, .counts = ints({4})},
         {[](auto& a) { a.counts = ints({5}); }, [](auto& a) { a.part_sizes = ints({4}); },
          [](auto& a) {
            a.top_idx = ints({6, 3});
          }});
  expect(&Ops::divide_moe_rows, {.offsets = ints({5}), .capacity = 4, .chunk = 2, .parts = ints({3, 5})},
         {[](auto& a) { a.chunk = 0; },
          [](auto& a) {
            a.parts = ints({3, 4});
          }});
  expect(&Ops::moe_dispatch, {.x = floats({6, 3}), .plan = plan, .rows = floats({12, 3})},
         {[](auto& a) {
            a.x = floats({5, 3});
          },
          [](auto& a) {
            a.rows = floats({12, 4});
          },
          [](auto& a) { a.codes = codes(6, 3); }, [](auto& a) { a.row_codes = codes(12, 3); }});
  expect(&Ops::moe_combine, {.rows = floats({12, 3}), .plan = plan, .y = floats({6, 3})},
         {[](auto& a) {
            a.y = floats({6, 4});
          },
          [](auto& a) {
            a.y = of(DType::kBF16, {6, 3});
          }});
  expect(&Ops::moe_dispatch_weights, {.weights = weights, .plan = plan, .row_weight = floats({12})}, {[](auto& a) {
    a.weights = floats({6, 3});
  }});
  expect(&Ops::moe_combine_weights, {.row_weight = floats({12}), .plan = plan, .weights = weights},
         {[](auto& a) { a.row_weight = doubles({12}); }});
}

TEST_F(ContractChecks, Exchange) {
  const Peers peers(0, 2);
  expect_taken(&Ops::peer_spread, {.peers = peers, .x = floats({4}), .begin = 1, .end = 4});
  expect_refused(&Ops::peer_spread, {.peers = peers, .x = floats({4}), .begin = 1, .end = 5});
  expect_taken(&Ops::peer_sum, {.peers = peers, .x = floats({4}), .begin = 1, .end = 4});
  expect_refused(&Ops::peer_sum, {.peers = peers, .x = of(DType::kBF16, {4}), .begin = 1, .end = 4});
  expect_refused(&Ops::peer_sum, {.peers = peers, .x = floats({4}), .begin = 1, .end = 4, .sum = floats({2})});
  expect_refused(&Ops::peer_fetch, {.peers = peers, .rank = 2, .x = floats({4}), .destination = floats({4})});
  expect_refused(&Ops::peer_barrier, {.peers = peers, .waited = floats({1})});
}

TEST_F(ContractChecks, Gradients) {
  expect(&Ops::add_gradient,
         {.product = floats({2, 3, 4}), .offsets = ints({3}), .sum = of(DType::kBF16, {2, 3, 4}), .random = {}},
         {[](auto& a) {
            a.sum = floats({2, 3, 4});
          },
          [](auto& a) {
            a.product = floats({2, 3, 5});
          },
          [](auto& a) { a.offsets = ints({2}); }, [](auto& a) { a.random.first = 1; },
          [](auto& a) { a.random.matrices = ints({3}); }});
}

TEST_F(ContractChecks, Optimizers) {
  expect(&Ops::adamw_steps,
         {.all = {{.w = floats({6}),
                   .low = {},
                   .grad = floats({6}),
                   .m = floats({6}),
                   .v = floats({6}),
                   .grad_scale = doubles({1}),
                   .rates = doubles({3}),
                   .random = {}}}},
         {[](auto& a) { a.all[0].m = floats({5}); }, [](auto& a) { a.all[0].rates = doubles({1}); },
          [](auto& a) { a.all[0].v = of(DType::kBF16, {6}); }, [](auto& a) { a.all[0].low = of(DType::kI16, {6}); }});
  expect(&Ops::muon_step,
         {.w = floats({2, 3, 4}),
          .low = {},
          .grad = floats({2, 3, 4}),
          .momentum = floats({2, 3, 4}),
          .grad_scale = doubles({1}),
          .rates = doubles({1})},
         {[](auto& a) { a.w = a.grad = a.momentum = floats({24}); },
          [](auto& a) {
            a.momentum = floats({2, 3, 3});
          },
          [](auto& a) {
            a.momentum = of(DType::kBF16, {2, 3, 4});  // without random bits
          },
          [](auto& a) { a.random.key = of(DType::kI64, {1}); },
          [](auto& a) {
            a.momentum = of(DType::kBF16, {2, 3, 4});
            a.random = {.key = of(DType::kI64, {1}), .matrices = ints({4})};  // halves of Muon's
          },
          [](auto& a) { a.rates = {}; }});
}

}  // namespace
}  // namespace nmoe::test
