// What every logged step records: losses beside those of objectives (model/heads/objectives.h), rates, speed.
#pragma once

#include <array>

#include "base/metric.h"

namespace nmoe::tags {

inline constexpr Metric kBpb = {
    .tag = "train/bpb", .unit = "bits/byte", .meaning = "bits per byte of the targets that stand for text"};
inline constexpr Metric kSpecialShare = {
    .tag = "train/special_share",
    .unit = "",
    .meaning = "share of target tokens that stand for no text, such as ends of turns and documents"};
inline constexpr Metric kGradNorm = {
    .tag = "train/grad_norm", .unit = "", .meaning = "norm of the step's whole gradient, before clipping"};
inline constexpr Metric kTokensSeen = {
    .tag = "train/tokens_seen", .unit = "tokens", .meaning = "tokens trained on so far, without padding"};
inline constexpr Metric kFlops = {
    .tag = "train/flops",
    .unit = "FLOP",
    .meaning = "FLOPs of the run so far, over all ranks, as the model needs them: recomputation does not count"};
inline constexpr std::array kTrainMetrics = {&kBpb, &kSpecialShare, &kGradNorm, &kTokensSeen, &kFlops};

inline constexpr Metric kMtpLoss = {
    .tag = "mtp/depth_NN/loss",
    .unit = "nats",
    .meaning =
        "mean cross-entropy of multi-token prediction at this depth (1: the token behind the next), over all "
        "ranks; not part of train/loss"};
inline constexpr Metric kMtpAcceptance = {
    .tag = "mtp/depth_NN/acceptance",
    .unit = "",
    .meaning = "share of this depth's targets that it finds likeliest, given the true tokens before"};
inline constexpr std::array kMtpMetrics = {&kMtpLoss, &kMtpAcceptance};

inline constexpr Metric kLr = {.tag = "optimizer/lr", .unit = "", .meaning = "learning rate of matrices"};
inline constexpr Metric kLrRest = {
    .tag = "optimizer/lr_rest", .unit = "", .meaning = "learning rate of embeddings, norms and other weights"};
inline constexpr Metric kLrExpert = {.tag = "optimizer/lr_expert", .unit = "", .meaning = "learning rate of experts"};
inline constexpr Metric kLrRouter = {.tag = "optimizer/lr_router", .unit = "", .meaning = "learning rate of routers"};
inline constexpr std::array kOptimizerMetrics = {&kLr, &kLrRest, &kLrExpert, &kLrRouter};

inline constexpr Metric kTokensPerS = {
    .tag = "throughput/tokens_per_s",
    .unit = "tokens/s",
    .meaning = "tokens per second of all ranks, over the steps since the last logged one"};
inline constexpr Metric kMsPerStep = {
    .tag = "throughput/ms_per_step",
    .unit = "ms",
    .meaning = "mean time per step since the last logged one, without validation and checkpoints"};
inline constexpr Metric kLoaderWaitMs = {
    .tag = "throughput/loader_wait_ms",
    .unit = "ms",
    .meaning = "mean time per step, since the last logged one, that the rank waited for its batch",
    .over_ranks = OverRanks::kEach};
inline constexpr std::array kThroughputMetrics = {&kTokensPerS, &kMsPerStep, &kLoaderWaitMs};

inline constexpr Metric kCheckpointStopS = {
    .tag = "checkpoint/stop_s",
    .unit = "s",
    .meaning =
        "time that training stopped for a checkpoint: until the one before was written, its state was copied to host "
        "memory, and what has no room there written ([runs.md](runs.md))"};
inline constexpr Metric kCheckpointWriteS = {.tag = "checkpoint/write_s",
                                             .unit = "s",
                                             .meaning =
                                                 "time that a checkpoint took, from its beginning, which is when the "
                                                 "one before was written, until the step behind "
                                                 "which all ranks had written their parts"};
inline constexpr std::array kCheckpointMetrics = {&kCheckpointStopS, &kCheckpointWriteS};

inline constexpr Metric kPhaseBegin = {.tag = "phase/begin",
                                       .unit = "ms",
                                       .meaning =
                                           "time that a step spends, on the rank's device, on resetting router "
                                           "statistics and the loss; at most one step per second is measured",
                                       .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseEmbedding = {.tag = "phase/embedding",
                                           .unit = "ms",
                                           .meaning = "the same for the embedding, forward and backward",
                                           .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseAttentionForward = {
    .tag = "phase/attention_forward",
    .unit = "ms",
    .meaning = "the same for the mixers of all layers and microbatches, forward",
    .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseFeedForwardForward = {
    .tag = "phase/feed_forward_forward",
    .unit = "ms",
    .meaning = "the same for dense MLPs and experts, forward, including waits for other ranks",
    .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseHeadAndLoss = {.tag = "phase/head_and_loss",
                                             .unit = "ms",
                                             .meaning = "the same for the head, forward and backward, and the loss",
                                             .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseFeedForwardBackward = {.tag = "phase/feed_forward_backward",
                                                     .unit = "ms",
                                                     .meaning = "the same for dense MLPs and experts, backward",
                                                     .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseAttentionBackward = {.tag = "phase/attention_backward",
                                                   .unit = "ms",
                                                   .meaning = "the same for mixers, backward",
                                                   .over_ranks = OverRanks::kEach};
inline constexpr Metric kPhaseUpdate = {.tag = "phase/update",
                                        .unit = "ms",
                                        .meaning =
                                            "the same for the remaining sums of gradients over ranks, clipping, and "
                                            "the update of weights and router biases",
                                        .over_ranks = OverRanks::kEach};
inline constexpr std::array kPhaseMetrics = {
    &kPhaseBegin,       &kPhaseEmbedding,           &kPhaseAttentionForward,  &kPhaseFeedForwardForward,
    &kPhaseHeadAndLoss, &kPhaseFeedForwardBackward, &kPhaseAttentionBackward, &kPhaseUpdate};

inline constexpr Metric kTflops = {.tag = "efficiency/tflops",
                                   .unit = "TFLOP/s",
                                   .meaning = "rate of all ranks together, over the steps since the last logged one"};
inline constexpr Metric kMfu = {
    .tag = "efficiency/mfu", .unit = "", .meaning = "the same as a share of the devices' peak in the compute dtype"};
inline constexpr std::array kEfficiencyMetrics = {&kTflops, &kMfu};

inline constexpr Metric kResidentGib = {.tag = "memory/resident_gib",
                                        .unit = "GiB",
                                        .meaning = "host memory used by the process",
                                        .over_ranks = OverRanks::kFirst};
inline constexpr std::array kMemoryMetrics = {&kResidentGib};

}  // namespace nmoe::tags
