// What a run will do, before it begins: steps, tokens, work, learning rates.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "data/stream/plan.h"
#include "model/cost.h"
#include "optim/schedule.h"

namespace nmoe {

// FLOPs of all of train.steps (resolved: train/training_data.h), as if every sequence were one document. `plan`: of the
// data; null: not known, and sequences have data.seq_len tokens.
double run_flops(const Config& config, const ModelCost& cost, const StreamPlan* plan);

// Bytes of the tensors of a checkpoint. model.vocab_size is resolved.
int64_t checkpoint_bytes(const Config& config);

// Lines on the steps, tokens and FLOPs (run_flops) of the whole run, on its schedule, and on its checkpoints: when, and
// how much disk they take. train.steps is resolved, or 0: not known. `peak_flops`: of the device, where it is known.
std::string print_run_plan(const Config& config, double flops, double peak_flops = 0.0);

// Error (usage) when steps after `done` would come after the schedule's end at a rate of 0, learning nothing.
// `resumes`: the run has checkpoints, and with them its schedule.
void check_schedule(const Config& config, const Progress& done = {}, bool resumes = false);

}  // namespace nmoe
