#include "track/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace nmoe {
namespace {

constexpr auto kTags = std::to_array<TagInfo>({
    {"train/loss", "nats", false, "mean cross-entropy of the step's target tokens, over all ranks"},
    {"train/bpb", "bits/byte", false, "bits per byte of the targets that stand for text"},
    {"train/special_share", "", false,
     "share of target tokens that stand for no text, such as ends of turns and documents"},
    {"train/grad_norm", "", false, "norm of the step's whole gradient, before clipping"},
    {"train/tokens_seen", "tokens", false, "tokens trained on so far"},
    {"train/flops", "FLOP", false,
     "FLOPs of the run so far, over all ranks, as the model needs them: recomputation does not count"},

    {"optimizer/lr", "", false, "learning rate of matrices"},
    {"optimizer/lr_rest", "", false, "learning rate of embeddings, norms and other weights"},
    {"optimizer/lr_expert", "", false, "learning rate of experts"},
    {"optimizer/lr_router", "", false, "learning rate of routers"},

    {"throughput/tokens_per_s", "tokens/s", false,
     "tokens per second of all ranks, over the steps since the last logged one"},
    {"throughput/ms_per_step", "ms", false,
     "mean time per step since the last logged one, without validation and checkpoints"},
    {"throughput/loader_wait_ms", "ms", false,
     "mean time per step, since the last logged one, that the rank waited for its batch"},
    {"phase/begin", "ms", false,
     "time that a step spends, on the rank's device, on resetting router statistics and the loss; at most one step per "
     "second is measured"},
    {"phase/embedding", "ms", false, "the same for the embedding, forward and backward"},
    {"phase/attention_forward", "ms", false, "the same for the mixers of all layers and microbatches, forward"},
    {"phase/feed_forward_forward", "ms", false,
     "the same for dense MLPs and experts, forward, including waits for other ranks"},
    {"phase/head_and_loss", "ms", false, "the same for the head, forward and backward, and the loss"},
    {"phase/feed_forward_backward", "ms", false, "the same for dense MLPs and experts, backward"},
    {"phase/attention_backward", "ms", false, "the same for mixers, backward"},
    {"phase/update", "ms", false,
     "the same for the remaining sums of gradients over ranks, clipping, and the update of weights and router biases"},
    {"efficiency/tflops", "TFLOP/s", false, "rate of all ranks together, over the steps since the last logged one"},
    {"efficiency/mfu", "", false, "the same as a share of the devices' peak in the compute dtype"},
    {"memory/resident_gib", "GiB", false, "host memory used by the process"},

    {"valid/loss", "nats", false, "mean cross-entropy of held-out target tokens of all sources"},
    {"valid/bpb", "bits/byte", false, "bits per byte of those that stand for text"},
    {"valid/tokens", "tokens", false, "number of target tokens"},
    {"valid/bytes", "bytes", false, "size of their text"},
    {"valid/special_share", "", false, "share of target tokens that stand for no text"},
    {"valid/special_loss", "nats", false,
     "mean cross-entropy of these alone: whether texts and turns end where they should"},
    {"valid/special_predicted_share", "", false, "share of these that were the likeliest, if a mask marks answers"},
    {"valid/answers", "", false, "number of answers, if a mask marks them"},
    {"valid/answers_correct_share", "", false, "share of answers whose every token was the likeliest"},
    {"valid/seconds", "s", false, "duration of the validation"},
    {"valid/SOURCE/loss", "nats", false, "as valid/loss, for one source, if there are several"},
    {"valid/SOURCE/bpb", "bits/byte", false, "as valid/bpb, for one source"},
    {"valid/SOURCE/tokens", "tokens", false, "as valid/tokens, for one source"},
    {"valid/SOURCE/bytes", "bytes", false, "as valid/bytes, for one source"},
    {"valid/SOURCE/special_share", "", false, "as valid/special_share, for one source"},
    {"valid/SOURCE/special_loss", "nats", false, "as valid/special_loss, for one source"},
    {"valid/SOURCE/special_predicted_share", "", false, "as valid/special_predicted_share, for one source"},
    {"valid/SOURCE/answers", "", false, "as valid/answers, for one source"},
    {"valid/SOURCE/answers_correct_share", "", false, "as valid/answers_correct_share, for one source"},
    {"valid/SOURCE/seconds", "s", false, "as valid/seconds, for one source"},

    {"eval/TASK/acc", "", false, "share of a task's items that are right ([evaluation.md](evaluation.md))"},
    {"eval/TASK/centered", "", false, "the same, rescaled so that 0 is chance and 1 is all"},
    {"eval/TASK/flexible", "", false, "share of generated answers whose last number is right"},
    {"eval/TASK/pass_at_NN", "", false, "expected share of items for which at least one of NN answers is right"},
    {"eval/TASK/bpb", "bits/byte", false, "bits per byte of a task's texts, if it has no answers"},
    {"eval/TASK/n", "", false, "number of items scored"},
    {"eval/seconds", "s", false, "duration of the evaluation"},
    {"eval/SUITE_v2", "", false, "mean over a suite's tasks, centred by the baselines of 2025"},
    {"eval/SUITE", "", false, "mean over a suite's tasks, centred"},

    {"router/layer_LL/load", "rows", true, "token copies that each expert got in the step, over all ranks"},
    {"router/layer_LL/bias", "", true, "selection bias of each expert, added to its score when experts are selected"},
    {"router/layer_LL/load_max_over_mean", "", false, "rows of the fullest expert over the mean"},
    {"router/layer_LL/max_load", "%", false, "share of all rows that the fullest expert got"},
    {"router/layer_LL/cv", "%", false, "coefficient of variation of the experts' rows: standard deviation over mean"},
    {"router/layer_LL/entropy", "nats", false, "entropy of a token's routing probabilities, mean over tokens"},
    {"router/layer_LL/experts_active", "", false, "number of experts that got any row"},
    {"router/layer_LL/bias_range", "", false, "largest minus smallest bias"},
    {"router/layer_LL/balance_loss", "", false, "auxiliary loss that evens out loads (model.moe.balance_loss)"},
    {"router/layer_LL/z_loss", "", false, "auxiliary loss that keeps the router's logits small (model.moe.z_loss)"},
    {"router_agg/mean_cv", "%", false, "cv, mean over layers"},
    {"router_agg/std_cv", "%", false, "cv, standard deviation over layers"},
    {"router_agg/mean_entropy", "nats", false, "entropy, mean over layers"},
    {"router_agg/min_entropy", "nats", false, "entropy of the layer where it is lowest"},
    {"router_agg/dead_experts_count", "", false, "number of experts of all layers that got no row"},
    {"router_agg/experts_active_mean", "", false, "number of experts that got any row, mean over layers"},

    {"precision/layer_LL/OPERAND/snr_db", "dB", false,
     "signal-to-noise ratio after rounding, of values beside each block's largest or of a sample of outputs "
     "([precision.md](precision.md))"},
    {"precision/layer_LL/OPERAND/underflow_share", "", false, "share of an operand's values that became zero"},
    {"precision/layer_LL/OPERAND/saturated_share", "", false, "share of values beyond the format's largest"},
    {"precision/lowest_snr_db", "dB", false, "lowest signal-to-noise ratio of all operands of all layers"},
    {"precision/lowest_output_snr_db", "dB", false, "lowest signal-to-noise ratio of all outputs of all layers"},
    {"precision/roles_left", "", false,
     "number of parts of layers that fell back to bf16, or would have with precision.fallback = act"},

    {"exchange/layer_LL/rank_load_max_over_mean", "", false,
     "rows of the fullest rank's experts over the mean of ranks"},
    {"exchange/layer_LL/rank_RR/sent_bytes", "bytes", false,
     "bytes that the rank wrote to other ranks' memory in the step"},
    {"exchange/layer_LL/rank_RR/wait_dispatch_ms", "ms", false,
     "time that it waited for other ranks before the transfer of tokens to experts, forward"},
    {"exchange/layer_LL/rank_RR/wait_combine_ms", "ms", false, "the same before the transfer of experts' outputs back"},
    {"exchange/layer_LL/rank_RR/wait_combine_backward_ms", "ms", false, "the same for the gradients of those outputs"},
    {"exchange/layer_LL/rank_RR/wait_dispatch_backward_ms", "ms", false, "the same for the gradients of tokens"},
    {"exchange/layer_LL/rank_RR/transfer_ms", "ms", false, "duration of its transfers"},
    {"exchange/layer_LL/rank_RR/hidden_share", "", false, "share of that time during which other work was done"},
    {"exchange_agg/rank_load_max_over_mean", "", false, "rank_load_max_over_mean of the most uneven layer"},
    {"exchange_agg/sent_bytes", "bytes", false, "bytes sent in all layers together, mean over ranks"},
    {"exchange_agg/wait_ms", "ms", false, "waiting time in all layers together, mean over ranks"},
    {"exchange_agg/wait_max_ms", "ms", false, "waiting time in all layers together, of the rank that waited longest"},
    {"exchange_agg/transfer_ms", "ms", false, "transfer time in all layers together, mean over ranks"},
    {"exchange_agg/hidden_share", "", false, "share of that time during which other work was done"},

    {"gpu/GG/utilization", "%", false, "share of the last second during which a kernel was running"},
    {"gpu/GG/memory_used_gib", "GiB", false, "device memory used by all programs"},
    {"gpu/GG/memory_total_gib", "GiB", false, "device memory in all"},
    {"gpu/GG/power_w", "W", false, "power draw at the logged step"},
    {"gpu/GG/power_max_w", "W", false, "highest power draw until the next logged step"},
    {"gpu/GG/power_limit_w", "W", false, "power limit"},
    {"gpu/GG/temperature_c", "C", false, "temperature of the chip"},
    {"gpu/GG/temperature_max_c", "C", false, "highest temperature until the next logged step"},
    {"gpu/GG/clock_sm_mhz", "MHz", false, "clock of the multiprocessors"},
    {"gpu/GG/clock_sm_min_mhz", "MHz", false, "lowest clock of the multiprocessors until the next logged step"},
    {"gpu/GG/clock_memory_mhz", "MHz", false, "clock of the memory"},
    {"gpu/GG/throttle_reasons", "", false,
     "why clocks were lowered until the next logged step, as bits of NVML: 4 power limit, 8 hardware slowdown, 32 "
     "and 64 heat, 128 power brake"},
    {"gpu/GG/ecc_corrected", "", false, "memory errors corrected since the driver was loaded"},
    {"gpu/GG/ecc_uncorrected", "", false, "memory errors not corrected since the driver was loaded"},
    {"gpu/GG/nvlink_sent_gib", "GiB", false, "data sent over all links since the driver was loaded"},
    {"gpu/GG/nvlink_received_gib", "GiB", false, "data received over all links since the driver was loaded"},

    {"parallel/expert_moves", "", false, "number of experts that changed ranks before the step"},
    {"parallel/layer_LL/load_before_moves", "", false,
     "rows of the fullest rank over the mean, in the steps before the moves"},
    {"parallel/layer_LL/load_after_moves", "", false, "what that would have been with the experts where they are now"},
});

size_t num_digits(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, [](unsigned char c) { return std::isdigit(c) != 0; }) -
                             text.begin());
}

// Of the placeholder of a name that a pattern begins with; 0 where it does not.
size_t name_size(std::string_view pattern) {
  for (const std::string_view placeholder : {"SOURCE", "TASK", "SUITE", "OPERAND"}) {
    if (pattern.starts_with(placeholder)) return placeholder.size();
  }
  return 0;
}

bool matches(std::string_view pattern, std::string_view tag) {
  for (;;) {
    if (pattern.starts_with("LL") || pattern.starts_with("RR") || pattern.starts_with("GG")) {
      const size_t digits = num_digits(tag);
      if (digits < 2) return false;
      tag.remove_prefix(digits);
      pattern.remove_prefix(2);
    } else if (const size_t name = name_size(pattern); name > 0) {
      std::string_view rest = pattern.substr(name);
      if (rest.ends_with("NN")) {
        const size_t digits = tag.size() - (tag.find_last_not_of("0123456789") + 1);
        if (digits == 0) return false;
        rest.remove_suffix(2);
        tag.remove_suffix(digits);
      }
      if (tag.size() <= rest.size() || !tag.ends_with(rest)) return false;
      return !pattern.starts_with("SUITE") || tag.find('/') == std::string_view::npos;
    } else if (pattern.empty() || tag.empty()) {
      return pattern.empty() && tag.empty();
    } else {
      if (pattern.front() != tag.front()) return false;
      pattern.remove_prefix(1);
      tag.remove_prefix(1);
    }
  }
}

}  // namespace

std::span<const TagInfo> tag_catalogue() { return kTags; }

const TagInfo* find_tag(std::string_view tag) {
  const auto* found = std::ranges::find_if(kTags, [&](const TagInfo& info) { return matches(info.pattern, tag); });
  return found == kTags.end() ? nullptr : found;
}

std::string tag_reference() {
  std::string page = R"(# Metrics

The output of `n runs tags`: every tag that a run records. In tags, LL stands for a layer of the model (01 is the one with the
weights `layers.1`), RR for a rank, GG for a GPU of the host in nvidia-smi's numbering, SOURCE for a source of data, TASK and
SUITE for what is evaluated, and OPERAND for a part of a layer and an operand or output of its products (experts_inputs,
mixer_gradients, dense_weights). Tags that do not apply to a run (experts, exchanges, GPUs) are absent. Each rank records what
concerns only itself in its own file. Rank 0 also records what concerns all ranks, and the first rank of each process also the
GPUs of its host, as last measured before each logged step. [runs.md](runs.md) says where values are stored and how to read them.
)";
  std::string_view group;
  for (const TagInfo& tag : kTags) {
    if (const std::string_view of = tag.pattern.substr(0, tag.pattern.find('/')); of != group) {
      group = of;
      page += fmt::format("\n## {}\n\n| tag | unit | meaning |\n| --- | --- | --- |\n", group);
    }
    page += fmt::format("| `{}` | {} | {}{} |\n", tag.pattern, tag.unit, tag.is_array ? "array: " : "", tag.meaning);
  }
  return page;
}

}  // namespace nmoe
