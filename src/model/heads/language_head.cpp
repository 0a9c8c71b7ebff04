#include "model/heads/language_head.h"

namespace nmoe {

void LanguageHead::logits(const Pass& pass, Tensor normed, Tensor rows, Tensor logits) const {
  if (!rows.defined()) return linear_.forward(pass.ops, normed, logits);
  const Tensor chosen = pass.push({rows.dim(0), normed.dim(1)});
  pass.ops.embedding_forward({.ids = rows, .table = normed, .y = chosen});
  linear_.forward(pass.ops, chosen, logits);
}

void LanguageHead::scores(const Pass& pass, Tensor normed, const ScoredRows& scored) const {
  const Tensor chosen = pass.push({scored.rows.dim(0), normed.dim(1)});
  pass.ops.embedding_forward({.ids = scored.rows, .table = normed, .y = chosen});
  pass.ops.head_loss({.x = chosen,
                      .w = linear_.weight().value,
                      .targets = scored.targets,
                      .grad_scale = {},
                      .losses = scored.losses,
                      .dx = {},
                      .dw = {},
                      .predictions = scored.predictions});
}

void LanguageHead::losses(const Pass& pass, Tensor normed, Tensor losses, Tensor predictions) const {
  pass.ops.head_loss({.x = normed,
                      .w = linear_.weight().value,
                      .targets = pass.batch.rows[BatchRow::kTargets],
                      .grad_scale = {},
                      .losses = losses,
                      .dx = {},
                      .dw = {},
                      .predictions = predictions});
}

void LanguageHead::forward_backward(const Pass& pass, Tensor normed, const Objectives& objectives, Tensor losses,
                                    Tensor dx) const {
  const auto count = static_cast<int64_t>(objectives.size());
  NMOE_CHECK(pass.scale.loss.dim(0) >= count, "{} objectives, of which {} have a scale", count, pass.scale.loss.dim(0));
  const Tensor of_each = losses.reshape({count, pass.batch.num_tokens()});
  HeadLoss args{.x = normed,
                .w = linear_.weight().value,
                .targets = pass.batch.rows[BatchRow::kTargets],
                .grad_scale = {},
                .losses = {},
                .dx = dx,
                .dw = linear_.weight().grad,
                .predictions = {},
                .accumulate_dw = linear_.weight().accumulate_grad()};
  for (int64_t i = 0; i < count; ++i) {
    objectives[static_cast<size_t>(i)].objective->ask(args, pass.batch, of_each[i], pass.scale.loss.rows(i, i + 1));
  }
  pass.ops.head_loss(args);
}

void LanguageHead::forward_backward_ahead(const Pass& pass, Tensor normed, const Ahead& ahead, Tensor dx) const {
  pass.ops.head_loss({.x = normed,
                      .w = linear_.weight().value,
                      .targets = ahead.targets,
                      .grad_scale = ahead.scale,
                      .losses = ahead.losses,
                      .dx = dx,
                      .dw = ahead.detached ? Tensor() : linear_.weight().grad,
                      .predictions = ahead.predictions,
                      .accumulate_dw = !ahead.detached && linear_.weight().accumulate_grad()});
}

}  // namespace nmoe
