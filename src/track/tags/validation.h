// What a validation records.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kValidLoss = {
    .tag = "valid/loss", .unit = "nats", .meaning = "mean cross-entropy of held-out target tokens of all sources"};
inline constexpr Metric kValidBpb = {
    .tag = "valid/bpb", .unit = "bits/byte", .meaning = "bits per byte of those that stand for text"};
inline constexpr Metric kValidTokens = {.tag = "valid/tokens", .unit = "tokens", .meaning = "number of target tokens"};
inline constexpr Metric kValidBytes = {.tag = "valid/bytes", .unit = "bytes", .meaning = "size of their text"};
inline constexpr Metric kValidSpecialShare = {
    .tag = "valid/special_share", .unit = "", .meaning = "share of target tokens that stand for no text"};
inline constexpr Metric kValidSpecialLoss = {
    .tag = "valid/special_loss",
    .unit = "nats",
    .meaning = "mean cross-entropy of these alone: whether texts and turns end where they should"};
inline constexpr Metric kValidSpecialPredictedShare = {
    .tag = "valid/special_predicted_share",
    .unit = "",
    .meaning = "share of these that were the likeliest, if a mask marks answers"};
inline constexpr Metric kValidAnswers = {
    .tag = "valid/answers", .unit = "", .meaning = "number of answers, if a mask marks them"};
inline constexpr Metric kValidAnswersCorrectShare = {.tag = "valid/answers_correct_share",
                                                     .unit = "",
                                                     .meaning = "share of answers whose every token was the likeliest"};
inline constexpr Metric kValidSeconds = {.tag = "valid/seconds", .unit = "s", .meaning = "duration of the validation"};
inline constexpr std::array kValidMetrics = {&kValidLoss,
                                             &kValidBpb,
                                             &kValidTokens,
                                             &kValidBytes,
                                             &kValidSpecialShare,
                                             &kValidSpecialLoss,
                                             &kValidSpecialPredictedShare,
                                             &kValidAnswers,
                                             &kValidAnswersCorrectShare,
                                             &kValidSeconds};

}  // namespace nmoe::tags
