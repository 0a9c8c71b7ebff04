// A model on tasks: what n eval and n speedrun do.
#pragma once

#include "cli/commands.h"
#include "eval/evaluate.h"

namespace nmoe::cli {

// Errors (usage) of arguments.tasks and texts, of their data and of options, and (runtime) where programs are to be run
// and cannot be contained: all that evaluate_model() would find without a model.
void check_evaluation(const EvalArguments& arguments);

// With arguments.out, keeps a journal there, goes on behind the one that is there, and leaves the report. Figures of a
// run's checkpoint go into that run's metrics. Errors: check_evaluation's, CheckpointReader's, evaluate's; (usage) when
// the model does not fit the machine.
EvalReport evaluate_model(const EvalArguments& arguments);

}  // namespace nmoe::cli
