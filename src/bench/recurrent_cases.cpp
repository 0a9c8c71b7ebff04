#include "bench/recurrent_cases.h"

#include <fmt/format.h>

namespace nmoe {
namespace {

using Work = OpCase::Work;
using Scan = OpSizes::Scan;

constexpr int64_t kChunk = 128;

std::string shape_of(const Scan& s) {
  return fmt::format("{} x {} tokens, {} heads of {}, {} groups, {} states", s.B, s.S, s.H, s.P, s.G, s.N);
}

SsdInputs inputs(Workbench& w, const Scan& s) {
  const int64_t T = s.B * s.S;
  return {.num_seqs = s.B,
          .seq_len = s.S,
          .chunk = kChunk,
          .x = w.act({T, s.H, s.P}),
          .b = w.act({T, s.G, s.N}, 0.1),
          .c = w.act({T, s.G, s.N}, 0.1),
          .dt = w.act({T, s.H}),
          .dt_bias = w.stat({s.H}),
          .a_log = w.stat({s.H}),
          .d = w.stat({s.H})};
}

// FLOPs as if every product were made once and scores once for a group, by the causal half of a chunk's squares; in
// backward states are made again.
void add_scan(const Scan& s, double act, std::vector<OpCase>& cases) {
  const auto tokens = static_cast<double>(s.B * s.S), H = static_cast<double>(s.H), P = static_cast<double>(s.P);
  const auto G = static_cast<double>(s.G), N = static_cast<double>(s.N), Q = static_cast<double>(kChunk);
  cases.push_back({"scan, forward", shape_of(s), tokens * (G * Q * N + H * Q * P + 4 * H * P * N),
                   tokens * act * (2 * H * P + 2 * G * N + H), [s](Workbench& w) -> Work {
                     const SsdInputs in = inputs(w, s);
                     const Tensor y = w.empty(in.x.shape());
                     return [&w, in, y] { w.ops().ssd_forward({.in = in, .y = y}); };
                   }});
  cases.push_back({"scan, backward", shape_of(s), tokens * (3 * G * Q * N + 2 * H * Q * P + 10 * H * P * N),
                   tokens * act * (3 * H * P + 4 * G * N + 2 * H), [s](Workbench& w) -> Work {
                     const SsdInputs in = inputs(w, s);
                     const SsdBackward args{.in = in,
                                            .dy = w.act(in.x.shape()),
                                            .dx = w.empty(in.x.shape()),
                                            .db = w.empty(in.b.shape()),
                                            .dc = w.empty(in.c.shape()),
                                            .ddt = w.empty(in.dt.shape()),
                                            .ddt_bias = w.stat({s.H}),
                                            .da_log = w.stat({s.H}),
                                            .dd = w.stat({s.H})};
                     return [&w, args] { w.ops().ssd_backward(args); };
                   }});
}

// A token each of B sequences, in the middle of a chunk.
void add_generation(const Scan& s, double act, double stat, std::vector<OpCase>& cases) {
  const auto rows = static_cast<double>(s.B), H = static_cast<double>(s.H), P = static_cast<double>(s.P);
  const auto G = static_cast<double>(s.G), N = static_cast<double>(s.N), seen = static_cast<double>(kChunk / 2);
  cases.push_back({"generation, scan", shape_of(s), rows * (2 * G * seen * N + 2 * H * seen * P + 2 * H * P * N),
                   rows * (stat * H * (P * N + seen) + act * seen * (H * P + G * N)), [s](Workbench& w) -> Work {
                     const std::vector<int32_t> positions(static_cast<size_t>(s.B), kChunk + kChunk / 2 - 1);
                     const CachedSsd args{.x = w.act({s.B, s.H, s.P}),
                                          .b = w.act({s.B, s.G, s.N}, 0.1),
                                          .c = w.act({s.B, s.G, s.N}, 0.1),
                                          .dt = w.act({s.B, s.H}),
                                          .dt_bias = w.stat({s.H}),
                                          .a_log = w.stat({s.H}),
                                          .d = w.stat({s.H}),
                                          .slots = w.numbers(s.B),
                                          .positions = w.i32(positions),
                                          .states = w.stat({s.B, s.H, s.P, s.N}),
                                          .open_x = w.act({s.B, kChunk, s.H * s.P}),
                                          .open_b = w.act({s.B, kChunk, s.G * s.N}),
                                          .open_step = w.stat({s.B, kChunk, s.H}, 0.01),
                                          .y = w.empty({s.B, s.H, s.P})};
                     return [&w, args] { w.ops().cached_ssd(args); };
                   }});
}

}  // namespace

void add_recurrent_cases(const OpSizes& sizes, double act, double stat, std::vector<OpCase>& cases) {
  for (const Scan& size : sizes.scans) add_scan(size, act, cases);
  for (const Scan& size : sizes.scanned) add_generation(size, act, stat, cases);
}

}  // namespace nmoe
