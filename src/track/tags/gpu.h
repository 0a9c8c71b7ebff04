// What the GPUs of a host do.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kGpuUtilization = {.tag = "gpu/GG/utilization",
                                           .unit = "%",
                                           .meaning = "share of the last second during which a kernel was running",
                                           .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuMemoryUsedGib = {.tag = "gpu/GG/memory_used_gib",
                                             .unit = "GiB",
                                             .meaning = "device memory used by all programs",
                                             .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuMemoryTotalGib = {
    .tag = "gpu/GG/memory_total_gib", .unit = "GiB", .meaning = "device memory in all", .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuPowerW = {
    .tag = "gpu/GG/power_w", .unit = "W", .meaning = "power draw at the logged step", .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuPowerMaxW = {.tag = "gpu/GG/power_max_w",
                                         .unit = "W",
                                         .meaning = "highest power draw until the next logged step",
                                         .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuPowerLimitW = {
    .tag = "gpu/GG/power_limit_w", .unit = "W", .meaning = "power limit", .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuTemperatureC = {
    .tag = "gpu/GG/temperature_c", .unit = "C", .meaning = "temperature of the chip", .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuTemperatureMaxC = {.tag = "gpu/GG/temperature_max_c",
                                               .unit = "C",
                                               .meaning = "highest temperature until the next logged step",
                                               .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuClockSmMhz = {.tag = "gpu/GG/clock_sm_mhz",
                                          .unit = "MHz",
                                          .meaning = "clock of the multiprocessors",
                                          .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuClockSmMinMhz = {
    .tag = "gpu/GG/clock_sm_min_mhz",
    .unit = "MHz",
    .meaning = "lowest clock of the multiprocessors until the next logged step",
    .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuClockMemoryMhz = {
    .tag = "gpu/GG/clock_memory_mhz", .unit = "MHz", .meaning = "clock of the memory", .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuThrottleReasons = {
    .tag = "gpu/GG/throttle_reasons",
    .unit = "",
    .meaning =
        "why clocks were lowered until the next logged step, as bits of NVML: 4 power limit, 8 hardware slowdown, 32 "
        "and 64 heat, 128 power brake",
    .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuEccCorrected = {.tag = "gpu/GG/ecc_corrected",
                                            .unit = "",
                                            .meaning = "memory errors corrected since the driver was loaded",
                                            .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuEccUncorrected = {.tag = "gpu/GG/ecc_uncorrected",
                                              .unit = "",
                                              .meaning = "memory errors not corrected since the driver was loaded",
                                              .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuNvlinkSentGib = {.tag = "gpu/GG/nvlink_sent_gib",
                                             .unit = "GiB",
                                             .meaning = "data sent over all links since the driver was loaded",
                                             .over_ranks = OverRanks::kHost};
inline constexpr Metric kGpuNvlinkReceivedGib = {.tag = "gpu/GG/nvlink_received_gib",
                                                 .unit = "GiB",
                                                 .meaning = "data received over all links since the driver was loaded",
                                                 .over_ranks = OverRanks::kHost};
inline constexpr std::array kGpuMetrics = {
    &kGpuUtilization,  &kGpuMemoryUsedGib,  &kGpuMemoryTotalGib, &kGpuPowerW,
    &kGpuPowerMaxW,    &kGpuPowerLimitW,    &kGpuTemperatureC,   &kGpuTemperatureMaxC,
    &kGpuClockSmMhz,   &kGpuClockSmMinMhz,  &kGpuClockMemoryMhz, &kGpuThrottleReasons,
    &kGpuEccCorrected, &kGpuEccUncorrected, &kGpuNvlinkSentGib,  &kGpuNvlinkReceivedGib};

}  // namespace nmoe::tags
