// What checks of precision record.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kPrecisionSnrDb = {.tag = "precision/layer_LL/OPERAND/snr_db",
                                           .unit = "dB",
                                           .meaning =
                                               "signal-to-noise ratio after rounding, of values beside each block's "
                                               "largest or of a sample of outputs ([precision.md](precision.md))"};
inline constexpr Metric kPrecisionUnderflowShare = {.tag = "precision/layer_LL/OPERAND/underflow_share",
                                                    .unit = "",
                                                    .meaning = "share of an operand's values that became zero"};
inline constexpr Metric kPrecisionSaturatedShare = {.tag = "precision/layer_LL/OPERAND/saturated_share",
                                                    .unit = "",
                                                    .meaning = "share of values beyond the format's largest"};
inline constexpr Metric kPrecisionLowestSnrDb = {
    .tag = "precision/lowest_snr_db",
    .unit = "dB",
    .meaning = "lowest signal-to-noise ratio of all operands of all layers"};
inline constexpr Metric kPrecisionLowestOutputSnrDb = {
    .tag = "precision/lowest_output_snr_db",
    .unit = "dB",
    .meaning = "lowest signal-to-noise ratio of all outputs of all layers"};
inline constexpr Metric kPrecisionRolesLeft = {
    .tag = "precision/roles_left",
    .unit = "",
    .meaning = "number of parts of layers that fell back to bf16, or would have with precision.fallback = act"};
inline constexpr std::array kPrecisionMetrics = {
    &kPrecisionSnrDb,       &kPrecisionUnderflowShare,    &kPrecisionSaturatedShare,
    &kPrecisionLowestSnrDb, &kPrecisionLowestOutputSnrDb, &kPrecisionRolesLeft};

}  // namespace nmoe::tags
