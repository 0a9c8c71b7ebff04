// The points of a sweep: what its keys are in each.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "research/sweep/sweep_file.h"

namespace nmoe {

// Every key of the sweep with its value, in the order of axes, draws, expressions.
using SweepPoint = std::vector<std::pair<std::string, Value>>;

// Every combination of the axes' values (the last changes fastest) with every draw (fastest of all).
//
// Draws are of Halton's sequence, moved by a random vector modulo 1 (Halton 1960; Cranley and Patterson 1976): for draw
// i = 0, 1, ... and the key of place j among those drawn, u = frac(inverse of i + 1 in the j-th prime + shift j of
// draw_seed), which becomes from + u (to - from), from (to / from)^u, or the choice floor(u * their number).
//
// Expressions see keys of the sweep, other expressions, and keys of `base`. A number of a range or draw is rounded to
// the nearest whole one where its key has whole numbers.
//
// Errors (usage), with the file's place: a key that configurations don't have; an expression that names one, a key
// without a number or itself, or gives a fraction to a key of whole numbers; equal points.
std::vector<SweepPoint> sweep_points(const SweepFile& file, const Config& base);

}  // namespace nmoe
