#include "chat/rendered_text.h"

#include <algorithm>

namespace nmoe {

std::string text_of(const std::vector<RenderedPiece>& pieces) {
  std::string text;
  for (const RenderedPiece& piece : pieces) text += piece.text;
  return text;
}

std::vector<RenderedPiece> part_of(const std::vector<RenderedPiece>& pieces, size_t begin, size_t end) {
  std::vector<RenderedPiece> part;
  size_t place = 0;
  for (const RenderedPiece& piece : pieces) {
    const size_t from = std::max(place, begin), to = std::min(place + piece.text.size(), end);
    if (from < to) part.push_back({piece.text.substr(from - place, to - from), piece.from_data});
    place += piece.text.size();
  }
  return part;
}

bool begins_with(const std::vector<RenderedPiece>& pieces, const std::vector<RenderedPiece>& front) {
  if (front.size() > pieces.size()) return false;
  for (size_t i = 0; i < front.size(); ++i) {
    const bool last = i + 1 == front.size();
    const bool same = last ? pieces[i].text.starts_with(front[i].text) : pieces[i].text == front[i].text;
    if (!same || pieces[i].from_data != front[i].from_data) return false;
  }
  return true;
}

size_t end_of_data(const std::vector<RenderedPiece>& pieces, size_t end) {
  size_t place = 0, last = 0;
  for (const RenderedPiece& piece : pieces) {
    if (place >= end) break;
    place += piece.text.size();
    if (piece.from_data) last = std::min(place, end);
  }
  return last;
}

size_t begin_of_data(const std::vector<RenderedPiece>& pieces, size_t begin) {
  size_t place = 0;
  for (const RenderedPiece& piece : pieces) {
    const size_t end = place + piece.text.size();
    if (piece.from_data && end > begin) return std::max(place, begin);
    place = end;
  }
  return place;
}

}  // namespace nmoe
