// What a run will do, before it begins: steps, tokens, work, learning rates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/stream/plan.h"
#include "model/spec/cost.h"
#include "optim/schedule.h"

namespace nmoe {

// FLOPs of all train.steps (resolved: train/loop/training_data.h), as if every sequence were one document. `plan`: of
// the data; null: unknown, and sequences have data.seq_len tokens.
double run_flops(const Config& config, const ModelCost& cost, const StreamPlan* plan);

// Bytes of the tensors of a checkpoint. model.vocab_size is resolved.
int64_t checkpoint_bytes(const Config& config);

// Lines on the steps, tokens and FLOPs (run_flops) of the whole run, its schedule, and its checkpoints with their times
// and disk space. train.steps is resolved, or 0: unknown. `epochs`: run_epochs(), if known; `peak_flops`: of the
// device, if known. A run that ends before its schedule does, at the peak of its rates or on their way down, is told
// so.
std::string print_run_plan(const Config& config, double flops, std::optional<double> epochs = {},
                           double peak_flops = 0.0);

// Error (usage) if steps after `done` would be beyond the schedule's end, at a learning rate of 0. `resumes`: the run
// has checkpoints, and with them its schedule.
void check_schedule(const Config& config, const Progress& done = {}, bool resumes = false);

}  // namespace nmoe
