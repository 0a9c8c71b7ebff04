#include "ops/cpu/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace nmoe::cpu {
namespace {

// Enough independent chains to cover the latency of two FMA units (4 cycles each) with room to spare.
constexpr int kChains = 12;
constexpr int64_t kIterations = 2'000'000;
constexpr int kRuns = 6;

float run_avx2(int64_t iterations) {
  __m256 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999F), term = _mm256_set1_ps(0.001F);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chains[i] = _mm256_fmadd_ps(chains[i], factor, term);
  }
  __m256 total = chains[0];
  for (int i = 1; i < kChains; ++i) total = _mm256_add_ps(total, chains[i]);
  return _mm256_cvtss_f32(total);
}

__attribute__((target("avx512f"))) float run_avx512(int64_t iterations) {
  __m512 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999F), term = _mm512_set1_ps(0.001F);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_fmadd_ps(chains[i], factor, term);
  }
  __m512 total = chains[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, chains[i]);
  return _mm512_cvtss_f32(total);
}

bool has_avx512() { return __builtin_cpu_supports("avx512f") != 0; }

}  // namespace

const char* widest_vectors() { return has_avx512() ? "AVX-512" : "AVX2"; }

double measure_peak_flops(ThreadPool& pool, DType dtype) {
  const int width = has_avx512() ? 16 : 8;
  std::atomic<float> sink{0.0F};  // keeps the loops from being optimised away
  std::vector<double> rates;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    pool.parallel_for(pool.num_threads(), [&](int64_t, int) {
      sink.store(has_avx512() ? run_avx512(kIterations) : run_avx2(kIterations), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    rates.push_back(2.0 * width * kChains * static_cast<double>(kIterations) * pool.num_threads() / seconds);
  }
  std::sort(rates.begin(), rates.end());
  const double fp32 = rates[rates.size() - 2];
  return dtype == DType::kF64 ? fp32 / 2 : fp32;
}

}  // namespace nmoe::cpu
