// Parts of what a template printed. Places are in bytes of its whole text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "chat/jinja/template.h"

namespace nmoe {

std::string text_of(const std::vector<RenderedPiece>& pieces);

// The part [begin, end).
std::vector<RenderedPiece> part_of(const std::vector<RenderedPiece>& pieces, size_t begin, size_t end);

// Whether `pieces` begin with all of `front`: the same text, from the same origin.
bool begins_with(const std::vector<RenderedPiece>& pieces, const std::vector<RenderedPiece>& front);

// Where the last data before `end` ends; 0 where there is none.
size_t end_of_data(const std::vector<RenderedPiece>& pieces, size_t end);
// Where the first data at or after `begin` begins; the end of the text where there is none.
size_t begin_of_data(const std::vector<RenderedPiece>& pieces, size_t begin);

}  // namespace nmoe
