// What contracts of recurrent layers ask of arguments: the same of every device, whether it computes or only counts.
#include "ops/contract_checks.h"

namespace nmoe::test {
namespace {

TEST_F(ContractChecks, Convolutions) {
  const ConvolutionInputs in{.num_seqs = 2,
                             .seq_len = 3,
                             .x = floats({6, 5}),
                             .weight = floats({5, 4}),
                             .bias = floats({5}),
                             .cu_seqlens = ints({4}),
                             .before = floats({2, 3, 5})};
  expect(&Ops::convolution_forward, {.in = in, .y = floats({6, 5}), .after = floats({2, 3, 5})},
         {[](auto& a) { a.in.seq_len = 4; },
          [](auto& a) {
            a.in.weight = floats({4, 4});
          },
          [](auto& a) { a.in.cu_seqlens = floats({4}); },
          [](auto& a) {
            a.after = floats({2, 4, 5});
          }});
  expect(&Ops::convolution_backward,
         {.in = in,
          .dy = floats({6, 5}),
          .dx = floats({6, 5}),
          .dweight = floats({5, 4}),
          .dbias = floats({5}),
          .dbefore = floats({2, 3, 5})},
         {[](auto& a) { a.dbefore = {}; }, [](auto& a) { a.dbias = {}; },
          [](auto& a) {
            a.dweight = floats({5, 3});
          },
          [](auto& a) {
            a.dafter = floats({1, 3, 5});
          }});
  expect(&Ops::cached_convolution,
         {.x = floats({2, 5}),
          .weight = floats({5, 4}),
          .bias = floats({5}),
          .slots = ints({2}),
          .positions = ints({2}),
          .rows = floats({3, 3, 5}),
          .y = floats({2, 5})},
         {[](auto& a) { a.slots = ints({3}); },
          [](auto& a) {
            a.rows = floats({3, 4, 5});
          }});
}

TEST_F(ContractChecks, ZeroCentredGainsConvolutionsWithoutBiasesAndGates) {
  expect(&Ops::rms_norm_forward,
         {.x = floats({6, 5}), .gain = floats({5}), .y = floats({6, 5}), .rstd = floats({6}), .gain_offset = 1},
         {[](auto& a) { a.gain = floats({4}); }});
  const ConvolutionInputs in{.seq_len = 6, .x = floats({6, 5}), .weight = floats({5, 4})};
  expect(&Ops::convolution_forward, {.in = in, .y = floats({6, 5})}, {[](auto& a) { a.in.bias = floats({4}); }});
  expect(&Ops::convolution_backward, {.in = in, .dy = floats({6, 5}), .dx = floats({6, 5}), .dweight = floats({5, 4})},
         {[](auto& a) { a.dbias = floats({5}); }});
  expect(&Ops::gate_forward, {.x = floats({6, 5}), .gate = floats({6, 5}), .y = floats({6, 5})}, {[](auto& a) {
    a.gate = floats({6, 4});
  }});
  expect(&Ops::gate_backward,
         {.x = floats({6, 5}),
          .gate = floats({6, 5}),
          .dy = floats({6, 5}),
          .dx = floats({6, 5}),
          .dgate = floats({6, 5})},
         {[](auto& a) {
           a.dgate = doubles({6, 5});
         }});
}

TEST_F(ContractChecks, Scans) {
  const SsdInputs in{.num_seqs = 2,
                     .seq_len = 3,
                     .chunk = 4,
                     .x = floats({6, 4, 5}),
                     .b = floats({6, 2, 3}),
                     .c = floats({6, 2, 3}),
                     .dt = floats({6, 4}),
                     .dt_bias = floats({4}),
                     .a_log = floats({4}),
                     .d = floats({4}),
                     .cu_seqlens = ints({4}),
                     .initial_state = floats({2, 4, 5, 3})};
  expect(&Ops::ssd_forward, {.in = in, .y = floats({6, 4, 5}), .final_state = floats({2, 4, 5, 3})},
         {[](auto& a) { a.in.chunk = 257; },
          [](auto& a) {
            a.in.c = floats({6, 2, 4});
          },
          [](auto& a) {
            a.in.b = a.in.c = floats({6, 3, 3});
          },
          [](auto& a) { a.in.a_log = floats({5}); }, [](auto& a) { a.in.seq_len = 2; },
          [](auto& a) {
            a.final_state = floats({2, 4, 3, 5});
          }});
  expect(&Ops::ssd_backward,
         {.in = in,
          .dy = floats({6, 4, 5}),
          .dx = floats({6, 4, 5}),
          .db = floats({6, 2, 3}),
          .dc = floats({6, 2, 3}),
          .ddt = floats({6, 4}),
          .ddt_bias = floats({4}),
          .da_log = floats({4}),
          .dd = floats({4}),
          .dinitial_state = floats({2, 4, 5, 3})},
         {[](auto& a) { a.dinitial_state = {}; },
          [](auto& a) {
            a.db = floats({6, 3, 2});
          },
          [](auto& a) { a.dd = floats({3}); },
          [](auto& a) {
            a.dy = floats({6, 5, 4});
          }});
  expect(&Ops::cached_ssd,
         {.x = floats({2, 4, 5}),
          .b = floats({2, 2, 3}),
          .c = floats({2, 2, 3}),
          .dt = floats({2, 4}),
          .dt_bias = floats({4}),
          .a_log = floats({4}),
          .d = floats({4}),
          .slots = ints({2}),
          .positions = ints({2}),
          .states = floats({3, 4, 5, 3}),
          .open_x = floats({3, 8, 20}),
          .open_b = floats({3, 8, 6}),
          .open_step = floats({3, 8, 4}),
          .y = floats({2, 4, 5})},
         {[](auto& a) {
            a.open_b = floats({3, 4, 6});
          },
          [](auto& a) {
            a.states = floats({2, 4, 5, 3});
          },
          [](auto& a) { a.positions = ints({3}); }});
  expect(&Ops::gated_norm_forward,
         {.x = floats({3, 8}),
          .z = floats({3, 8}),
          .gain = floats({8}),
          .num_groups = 2,
          .y = floats({3, 8}),
          .rstd = floats({3, 2})},
         {[](auto& a) { a.num_groups = 4; },
          [](auto& a) {
            a.z = floats({3, 4});
          },
          [](auto& a) {
            a.rstd = floats({3, 3}), a.num_groups = 3;
          }});
  expect(&Ops::gated_norm_backward,
         {.x = floats({3, 8}),
          .z = floats({3, 8}),
          .gain = floats({8}),
          .rstd = floats({3, 2}),
          .dy = floats({3, 8}),
          .dx = floats({3, 8}),
          .dz = floats({3, 8}),
          .dgain = floats({8})},
         {[](auto& a) {
            a.dz = floats({3, 4});
          },
          [](auto& a) { a.dgain = floats({4}); }});
}

TEST_F(ContractChecks, DeltaRules) {
  const DeltaRuleInputs in{.num_seqs = 2,
                           .seq_len = 3,
                           .q = floats({6, 2, 3}),
                           .k = floats({6, 2, 3}),
                           .v = floats({6, 4, 5}),
                           .b = floats({6, 4}),
                           .a = floats({6, 4}),
                           .dt_bias = floats({4}),
                           .a_log = floats({4}),
                           .cu_seqlens = ints({4}),
                           .initial_state = floats({2, 4, 3, 5})};
  expect(&Ops::delta_rule_forward, {.in = in, .y = floats({6, 4, 5}), .final_state = floats({2, 4, 3, 5})},
         {[](auto& a) { a.in.seq_len = 2; },
          [](auto& a) {
            a.in.k = floats({6, 2, 4});
          },
          [](auto& a) {
            a.in.q = a.in.k = floats({6, 3, 3});
          },
          [](auto& a) { a.in.a_log = floats({5}); },
          [](auto& a) {
            a.in.b = floats({6, 2});
          },
          [](auto& a) {
            a.in.a = floats({6, 4, 3});  // without as many biases
          },
          [](auto& a) {
            a.in.a = floats({6, 4, 2});
            a.in.dt_bias = floats({4, 2});
          },
          [](auto& a) {
            a.final_state = floats({2, 4, 5, 3});
          },
          [](auto& a) {
            a.y = doubles({6, 4, 5});
          }});
  expect(&Ops::delta_rule_backward,
         {.in = in,
          .dy = floats({6, 4, 5}),
          .dq = floats({6, 2, 3}),
          .dk = floats({6, 2, 3}),
          .dv = floats({6, 4, 5}),
          .db = floats({6, 4}),
          .da = floats({6, 4}),
          .ddt_bias = floats({4}),
          .da_log = floats({4}),
          .dinitial_state = floats({2, 4, 3, 5})},
         {[](auto& a) { a.dinitial_state = {}; },
          [](auto& a) {
            a.dq = a.dk = floats({6, 4, 3});
          },
          [](auto& a) { a.ddt_bias = floats({3}); },
          [](auto& a) {
            a.dy = floats({6, 5, 4});
          }});
  expect(&Ops::cached_delta_rule,
         {.q = floats({2, 2, 3}),
          .k = floats({2, 2, 3}),
          .v = floats({2, 4, 5}),
          .b = floats({2, 4}),
          .a = floats({2, 4}),
          .dt_bias = floats({4}),
          .a_log = floats({4}),
          .slots = ints({2}),
          .positions = ints({2}),
          .states = floats({3, 4, 3, 5}),
          .y = floats({2, 4, 5})},
         {[](auto& a) {
            a.states = floats({3, 4, 5, 3});
          },
          [](auto& a) { a.positions = ints({3}); }});
}

}  // namespace
}  // namespace nmoe::test
