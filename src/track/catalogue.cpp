#include "track/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace nmoe {
namespace {

constexpr auto kTags = std::to_array<TagInfo>({
    {"train/loss", "nats", false, "mean cross-entropy over the step's targets, of all ranks"},
    {"train/bpb", "bits/byte", false, "the same as bits per byte of the targets' text"},
    {"train/grad_norm", "", false, "norm of all gradients of the step, before clipping"},
    {"train/tokens_seen", "tokens", false, "trained on so far"},
    {"train/flops", "FLOP", false,
     "of the run so far, of all ranks, as the model needs them: nothing for recomputation"},

    {"optimizer/lr", "", false, "learning rate of matrices"},
    {"optimizer/lr_rest", "", false, "of embeddings, norms and the other weights"},
    {"optimizer/lr_expert", "", false, "of experts"},
    {"optimizer/lr_router", "", false, "of routers"},

    {"throughput/tokens_per_s", "tokens/s", false, "of all ranks, over the steps since the last that was logged"},
    {"throughput/ms_per_step", "ms", false, "mean over the same steps; validation and checkpoints do not count"},
    {"throughput/loader_wait_ms", "ms", false, "of a step, mean over the same: what the rank spent getting its batch"},
    {"phase/begin", "ms", false,
     "of one step, at most once a second, on the rank's device: router statistics and the loss at zero"},
    {"phase/embedding", "ms", false, "of the same: embedding, forward and backward"},
    {"phase/attention_forward", "ms", false, "same: mixers of all layers and microbatches"},
    {"phase/feed_forward_forward", "ms", false, "same: dense MLPs and experts, with waits for other ranks"},
    {"phase/head_and_loss", "ms", false, "same: the head, both ways, and the loss"},
    {"phase/feed_forward_backward", "ms", false, "same: dense MLPs and experts"},
    {"phase/attention_backward", "ms", false, "same: mixers"},
    {"phase/update", "ms", false, "same: the rest of the gradients' sums, clipping, weights and router biases"},
    {"efficiency/tflops", "TFLOP/s", false, "of all ranks, over the same steps"},
    {"efficiency/mfu", "", false, "the same as a share of what the devices can do in the compute dtype"},
    {"memory/resident_gib", "GiB", false, "of the process, in the host's memory"},

    {"valid/loss", "nats", false, "mean cross-entropy over held-out targets of all sources"},
    {"valid/bpb", "bits/byte", false, "the same as bits per byte"},
    {"valid/tokens", "tokens", false, "targets that counted"},
    {"valid/bytes", "bytes", false, "of text in them"},
    {"valid/answers", "", false, "answers that counted, where a mask says what they are"},
    {"valid/answers_correct_share", "", false, "of these, those whose every token was the likeliest"},
    {"valid/seconds", "s", false, "that validation took"},
    {"valid/SOURCE/loss", "nats", false, "as above, of one source where there are several"},
    {"valid/SOURCE/bpb", "bits/byte", false, "same"},
    {"valid/SOURCE/tokens", "tokens", false, "same"},
    {"valid/SOURCE/bytes", "bytes", false, "same"},
    {"valid/SOURCE/answers", "", false, "same"},
    {"valid/SOURCE/answers_correct_share", "", false, "same"},
    {"valid/SOURCE/seconds", "s", false, "same"},

    {"eval/TASK/acc", "", false, "share of a task's items that are right ([evaluation.md](evaluation.md))"},
    {"eval/TASK/centered", "", false, "the same, 0 for chance and 1 for all"},
    {"eval/TASK/flexible", "", false, "share of answers that a model wrote whose last number is right"},
    {"eval/TASK/pass_at_NN", "", false, "share of items of which one of so many answers is right, as expected"},
    {"eval/TASK/bpb", "bits/byte", false, "of a task's texts, where it has no answers"},
    {"eval/TASK/n", "", false, "items that were scored"},
    {"eval/seconds", "s", false, "that evaluation took"},
    {"eval/SUITE_v2", "", false, "mean of a suite's tasks, centred by the baselines of 2025"},
    {"eval/SUITE", "", false, "mean of a suite's tasks, centred"},

    {"router/layer_LL/load", "rows", true, "of each expert, of all ranks: copies of tokens that it got in the step"},
    {"router/layer_LL/bias", "", true, "of each expert: what is added to its score when experts are selected"},
    {"router/layer_LL/load_max_over_mean", "", false, "the fullest expert's rows over the mean"},
    {"router/layer_LL/max_load", "%", false, "the fullest expert's share of all rows"},
    {"router/layer_LL/cv", "%", false, "standard deviation of the experts' rows over their mean"},
    {"router/layer_LL/entropy", "nats", false, "of a token's routing probabilities, mean over tokens"},
    {"router/layer_LL/experts_active", "", false, "experts that got any row"},
    {"router/layer_LL/bias_range", "", false, "largest minus smallest bias"},
    {"router/layer_LL/balance_loss", "", false, "loss that keeps loads even (model.moe.balance_loss)"},
    {"router/layer_LL/z_loss", "", false, "loss that keeps the router's logits small (model.moe.z_loss)"},
    {"router_agg/mean_cv", "%", false, "cv, mean over layers"},
    {"router_agg/std_cv", "%", false, "cv, standard deviation over layers"},
    {"router_agg/mean_entropy", "nats", false, "entropy, mean over layers"},
    {"router_agg/min_entropy", "nats", false, "of the layer with the least"},
    {"router_agg/dead_experts_count", "", false, "experts of all layers that got no row"},
    {"router_agg/experts_active_mean", "", false, "experts with rows, mean over layers"},

    {"precision/layer_LL/OPERAND/snr_db", "dB", false,
     "what rounding leaves, of values beside each block's largest or of a sample of outputs "
     "([precision.md](precision.md))"},
    {"precision/layer_LL/OPERAND/underflow_share", "", false, "of an operand's values, those that became zero"},
    {"precision/layer_LL/OPERAND/saturated_share", "", false, "those beyond the format's largest"},
    {"precision/lowest_snr_db", "dB", false, "of all operands of all layers"},
    {"precision/lowest_output_snr_db", "dB", false, "of all outputs of all layers"},
    {"precision/roles_left", "", false,
     "parts of layers that are, or with precision.fallback = act were, left to bf16"},

    {"exchange/layer_LL/rank_load_max_over_mean", "", false,
     "rows of the fullest rank's experts over the mean of ranks"},
    {"exchange/layer_LL/rank_RR/sent_bytes", "bytes", false, "that the rank put into others' memory in the step"},
    {"exchange/layer_LL/rank_RR/wait_dispatch_ms", "ms", false, "that it waited for others before the transfer"},
    {"exchange/layer_LL/rank_RR/wait_combine_ms", "ms", false, "same"},
    {"exchange/layer_LL/rank_RR/wait_combine_backward_ms", "ms", false, "same"},
    {"exchange/layer_LL/rank_RR/wait_dispatch_backward_ms", "ms", false, "same"},
    {"exchange/layer_LL/rank_RR/transfer_ms", "ms", false, "that its transfers took"},
    {"exchange/layer_LL/rank_RR/hidden_share", "", false, "of that, what other work hid"},
    {"exchange_agg/rank_load_max_over_mean", "", false, "of the most uneven layer"},
    {"exchange_agg/sent_bytes", "bytes", false, "all layers together, mean over ranks"},
    {"exchange_agg/wait_ms", "ms", false, "same"},
    {"exchange_agg/wait_max_ms", "ms", false, "all layers together, of the rank that waited longest"},
    {"exchange_agg/transfer_ms", "ms", false, "all layers together, mean over ranks"},
    {"exchange_agg/hidden_share", "", false, "of that"},

    {"gpu/GG/utilization", "%", false, "of the last second, the time in which a kernel was running"},
    {"gpu/GG/memory_used_gib", "GiB", false, "of the device, by everything on it"},
    {"gpu/GG/memory_total_gib", "GiB", false, "what it has"},
    {"gpu/GG/power_w", "W", false, "drawn now"},
    {"gpu/GG/power_max_w", "W", false, "the most until the next logged step"},
    {"gpu/GG/power_limit_w", "W", false, "allowed"},
    {"gpu/GG/temperature_c", "C", false, "of the chip"},
    {"gpu/GG/temperature_max_c", "C", false, "the highest until the next logged step"},
    {"gpu/GG/clock_sm_mhz", "MHz", false, "of the multiprocessors"},
    {"gpu/GG/clock_sm_min_mhz", "MHz", false, "the lowest until the next logged step"},
    {"gpu/GG/clock_memory_mhz", "MHz", false, "of the memory"},
    {"gpu/GG/throttle_reasons", "", false,
     "why clocks were low until the next logged step, bits of NVML: 4 power limit, 8 hardware slowdown, 32 and 64 "
     "heat, 128 power brake"},
    {"gpu/GG/ecc_corrected", "", false, "memory errors that were corrected since the driver was loaded"},
    {"gpu/GG/ecc_uncorrected", "", false, "that were not"},
    {"gpu/GG/nvlink_sent_gib", "GiB", false, "over all links since the driver was loaded"},
    {"gpu/GG/nvlink_received_gib", "GiB", false, "same"},

    {"parallel/expert_moves", "", false, "experts that changed ranks in front of the step"},
    {"parallel/layer_LL/load_before_moves", "", false, "the fullest rank's rows over the mean, in the steps before"},
    {"parallel/layer_LL/load_after_moves", "", false, "what that would have been where the experts are now"},
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
  std::string page =
      "# Metrics\n\n"
      "What `n runs tags` prints: every tag that a run records. LL stands for a layer of the model (01 is that of the\n"
      "weights `layers.1`), RR for a rank, GG for a GPU of the host as nvidia-smi counts them, SOURCE for a source of\n"
      "data, TASK and SUITE for what is evaluated, OPERAND for a part of a layer and an operand or output of its "
      "products\n"
      "(experts_inputs, mixer_gradients, dense_weights). What a run has not (experts, exchanges, GPUs) is left out. A "
      "rank\n"
      "records what concerns it alone in its own file, rank 0 also what is of all ranks, the first rank of a process "
      "also\n"
      "its host's GPUs, the last measurement of each logged step. Where the values are and how to read them: "
      "[runs.md](runs.md).\n";
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
