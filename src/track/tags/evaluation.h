// What evaluations record.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kEvalTaskAcc = {
    .tag = "eval/TASK/acc",
    .unit = "",
    .meaning = "share of a task's items that are right ([evaluation.md](evaluation.md))"};
inline constexpr Metric kEvalTaskCentered = {
    .tag = "eval/TASK/centered", .unit = "", .meaning = "the same, rescaled so that 0 is chance and 1 is all"};
inline constexpr Metric kEvalTaskFlexible = {
    .tag = "eval/TASK/flexible", .unit = "", .meaning = "share of generated answers whose last number is right"};
inline constexpr Metric kEvalTaskPassAt = {
    .tag = "eval/TASK/pass_at_NN",
    .unit = "",
    .meaning = "expected share of items for which at least one of NN answers is right"};
inline constexpr Metric kEvalTaskAcceptance = {
    .tag = "eval/TASK/acceptance_length",
    .unit = "",
    .meaning = "tokens that a step with guesses gave an answer on average ([speculation.md](speculation.md))"};
inline constexpr Metric kEvalTaskAccepted = {
    .tag = "eval/TASK/accepted_NN",
    .unit = "",
    .meaning = "share of guesses in place NN of a step that were right, those before them being right"};
inline constexpr Metric kEvalTaskBpb = {
    .tag = "eval/TASK/bpb", .unit = "bits/byte", .meaning = "bits per byte of a task's texts, if it has no answers"};
inline constexpr Metric kEvalTaskN = {.tag = "eval/TASK/n", .unit = "", .meaning = "number of items scored"};
inline constexpr Metric kEvalSeconds = {.tag = "eval/seconds", .unit = "s", .meaning = "duration of the evaluation"};
inline constexpr Metric kEvalSuiteV2 = {
    .tag = "eval/SUITE_v2", .unit = "", .meaning = "mean over a suite's tasks, centred by the baselines of 2025"};
inline constexpr Metric kEvalSuite = {.tag = "eval/SUITE", .unit = "", .meaning = "mean over a suite's tasks, centred"};
inline constexpr std::array kEvalMetrics = {
    &kEvalTaskAcc, &kEvalTaskCentered, &kEvalTaskFlexible, &kEvalTaskPassAt, &kEvalTaskAcceptance, &kEvalTaskAccepted,
    &kEvalTaskBpb, &kEvalTaskN,        &kEvalSeconds,      &kEvalSuiteV2,    &kEvalSuite};

}  // namespace nmoe::tags
