#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// That the rule suits the number of experts, and that shapes agree.
void check_choice(const RouterRule& rule, const Tensor& logits, const Tensor& scores, const Tensor& top_idx,
                  const Tensor& weights) {
  NMOE_CHECK(logits.shape().rank() == 2 && is_stat(logits.dtype()) && is(scores, logits.dtype(), logits.shape()) &&
                 is(top_idx, DType::kI32, {logits.dim(0), rule.top_k}) && is(weights, logits.dtype(), top_idx.shape()),
             "router of logits {}, scores {}, top_k {}: top_idx {}, weights {}", logits.shape(), scores.shape(),
             rule.top_k, top_idx.shape(), weights.shape());
  const int64_t num_experts = logits.dim(1);
  NMOE_CHECK(rule.num_groups >= 1 && num_experts % rule.num_groups == 0 && rule.top_groups >= 1 &&
                 rule.top_groups <= rule.num_groups && rule.top_k >= 1 &&
                 rule.top_k <= rule.top_groups * (num_experts / rule.num_groups),
             "top_k {} in {} of {} groups of {} experts", rule.top_k, rule.top_groups, rule.num_groups, num_experts);
}

void check_bias(const Tensor& bias, const Tensor& logits) {
  NMOE_CHECK(is(bias, logits.dtype(), {logits.dim(1)}), "bias {} {} for logits {} {}", dtype_name(bias.dtype()),
             bias.shape(), dtype_name(logits.dtype()), logits.shape());
}

void check_loss(const RouterLoss& loss, int64_t num_tokens) {
  NMOE_CHECK(loss.balance == 0 || (loss.seq_len > 0 && num_tokens % loss.seq_len == 0), "{} tokens in sequences of {}",
             num_tokens, loss.seq_len);
}

}  // namespace

void check(const RouterForward& args) {
  check_choice(args.rule, args.logits, args.scores, args.top_idx, args.weights);
  check_bias(args.bias, args.logits);
  check_loss(args.loss, args.logits.dim(0));
  const bool has_loss = args.loss.balance != 0 || args.loss.z != 0;
  NMOE_CHECK((has_loss ? is(args.aux_loss, DType::kF64, {2}) : true) && is_one_if_defined(args.entropy, DType::kF64),
             "router's losses {}, entropy {}", args.aux_loss.shape(), args.entropy.shape());
}

void check(const RouterBackward& args) {
  check_choice(args.rule, args.logits, args.scores, args.top_idx, args.weights);
  check_loss(args.loss, args.logits.dim(0));
  NMOE_CHECK(is(args.dweights, args.weights.dtype(), args.weights.shape()) && is_act(args.dlogits.dtype()) &&
                 args.dlogits.shape() == args.logits.shape(),
             "router's gradients {} of weights {} to {} {} of logits {}", args.dweights.shape(), args.weights.shape(),
             dtype_name(args.dlogits.dtype()), args.dlogits.shape(), args.logits.shape());
}

void check(const RouteTokens& args) {
  check_choice(args.rule, args.logits, args.scores, args.top_idx, args.weights);
  check_bias(args.bias, args.logits);
  check(BuildMoePlan{.top_idx = args.top_idx, .plan = args.plan, .counts = {}});
  NMOE_CHECK(args.plan.offsets.dim(0) == args.logits.dim(1) + 1, "a plan of offsets {} for logits {}",
             args.plan.offsets.shape(), args.logits.shape());
  check(MoeDispatchWeights{.weights = args.weights, .plan = args.plan, .row_weight = args.row_weight});
}

void check(const RouterBiasUpdate& args) {
  NMOE_CHECK(args.counts.dtype() == DType::kI32 && args.counts.shape().rank() == 1 && is_stat(args.bias.dtype()) &&
                 args.bias.shape() == args.counts.shape() && is_one(args.grad_scale, DType::kF64),
             "bias {} for counts {} {}", args.bias.shape(), dtype_name(args.counts.dtype()), args.counts.shape());
}

}  // namespace nmoe
