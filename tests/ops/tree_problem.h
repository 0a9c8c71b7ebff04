// Attention to documents in pieces, for the CPU's and the GPU's tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/tensors.h"

namespace nmoe::test {

struct TreeCase {
  struct Piece {
    int64_t rows;
    int64_t parent;  // -1: none
  };

  std::string name;
  int64_t H, G, Dk, Dv, window;
  std::vector<Piece> pieces;
  bool sinks = false;

  int64_t num_rows() const {
    int64_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.rows;
    return sum;
  }
  // For each row those that it sees, itself the last, as if there were no window.
  std::vector<std::vector<int64_t>> paths() const {
    std::vector<std::vector<int64_t>> all, of_pieces;  // the last: up to a piece's end
    for (const Piece& piece : pieces) {
      std::vector<int64_t> path;
      if (piece.parent >= 0) path = of_pieces[static_cast<size_t>(piece.parent)];
      for (int64_t i = 0; i < piece.rows; ++i) {
        path.push_back(std::ssize(all));
        all.push_back(path);
      }
      of_pieces.push_back(std::move(path));
    }
    return all;
  }
  // Every piece as a document of its own that has its whole beginning, behind a document of `before` rows. With it, for
  // each row there that row here, and for each row here one there.
  struct Unfolded {
    std::vector<Piece> pieces;
    std::vector<int64_t> sources, places;
  };
  Unfolded unfolded(int64_t before) const {
    Unfolded result{
        .pieces = {{before, -1}}, .sources = std::vector<int64_t>(static_cast<size_t>(before)), .places = {}};
    const auto paths = this->paths();
    int64_t row = 0;
    for (const Piece& piece : pieces) {
      if (piece.rows == 0) continue;
      row += piece.rows;
      const auto& path = paths[static_cast<size_t>(row - 1)];
      result.pieces.push_back({std::ssize(path), -1});
      result.sources.insert(result.sources.end(), path.begin(), path.end());
      for (int64_t i = piece.rows; i > 0; --i) result.places.push_back(std::ssize(result.sources) - i);
    }
    return result;
  }
};

inline const std::vector<TreeCase>& tree_cases() {
  static const std::vector<TreeCase> cases = {
      {"one row", 2, 1, 3, 2, 0, {{1, -1}}},
      {"one document", 2, 2, 8, 8, 0, {{70, -1}}},
      {"odd heads", 4, 2, 5, 7, 0, {{40, -1}, {3, 0}, {1, 0}, {33, 1}}},
      {"a beginning and its ends", 4, 2, 64, 64, 0, {{200, -1}, {3, 0}, {17, 0}, {1, 0}, {70, 0}, {40, -1}, {9, 5}}},
      {"whole blocks", 2, 1, 64, 64, 0, {{128, -1}, {64, 0}, {64, 0}, {1, 1}, {128, 3}}},
      {"many short ends", 1, 1, 64, 64, 0, {{130, -1}, {2, 0}, {2, 0}, {2, 0}, {2, 0}, {2, 0}, {2, 0}, {2, 0}, {2, 0}}},
      {"deep", 2, 2, 64, 64, 0, {{65, -1}, {30, 0}, {50, 1}, {7, 2}, {90, 1}, {4, 0}, {0, -1}, {5, 4}}},
      {"heads of 128, all share one", 4, 1, 128, 128, 0, {{150, -1}, {60, 0}, {10, 0}, {100, 2}}},
      {"MLA's heads", 2, 2, 192, 128, 0, {{150, -1}, {60, 0}, {10, 0}, {100, 2}}},
      {"keys of 72, values of 40", 2, 2, 72, 40, 0, {{150, -1}, {60, 0}, {10, 0}}},
      {"the largest heads", 1, 1, 256, 128, 0, {{90, -1}, {10, 0}}},
      {"values too large for tiles", 1, 1, 64, 256, 0, {{90, -1}, {10, 0}}},
      {"window of one", 2, 1, 64, 64, 1, {{100, -1}, {5, 0}, {70, 0}}},
      {"window within a tile", 2, 1, 64, 64, 5, {{100, -1}, {5, 0}, {70, 0}}},
      {"window across pieces", 2, 1, 128, 128, 130, {{300, -1}, {30, 0}, {5, 0}, {100, 1}}},
      {"window beyond all", 2, 1, 8, 8, int64_t{1} << 40, {{100, -1}, {5, 0}}},
      {"sinks", 4, 2, 64, 64, 130, {{300, -1}, {30, 0}, {5, 0}, {100, 1}}, true},
      {"sinks, odd sizes", 3, 1, 7, 5, 0, {{90, -1}, {10, 0}}, true},
  };
  return cases;
}

// Scores of up to about 10: some rows see many keys, some hardly more than one.
inline TreeAttention tree_problem(TensorPool& pool, const TreeCase& c) {
  const int64_t T = c.num_rows();
  std::vector<double> bounds = {0}, parents, positions;
  for (const TreeCase::Piece& piece : c.pieces) {
    bounds.push_back(bounds.back() + static_cast<double>(piece.rows));
    parents.push_back(static_cast<double>(piece.parent));
  }
  for (const auto& path : c.paths()) positions.push_back(static_cast<double>(path.size() - 1));
  bounds.resize(bounds.size() + 3, bounds.back());  // room for more pieces
  parents.resize(bounds.size(), -1);
  return {.scale = 1 / std::sqrt(static_cast<double>(c.Dk)),
          .window = c.window,
          .q = pool.normal({T, c.H, c.Dk}, 2.0),
          .k = pool.normal({T, c.G, c.Dk}),
          .v = pool.normal({T, c.G, c.Dv}),
          .out = pool.full({T, c.H, c.Dv}, NAN),
          .positions = pool.ints({T}, positions),
          .bounds = pool.ints({std::ssize(bounds)}, bounds),
          .parents = pool.ints({std::ssize(parents)}, parents),
          .sinks = c.sinks ? pool.normal({c.H}, 3.0) : Tensor()};
}

// Rows of x.
inline Tensor picked_rows(TensorPool& pool, Tensor x, const std::vector<int64_t>& rows) {
  const int64_t width = x.shape().row_elements();
  const Tensor y = pool.zeros(x.dtype(), {std::ssize(rows), x.dim(1), x.dim(2)});
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < width; ++j) set(y, static_cast<int64_t>(i) * width + j, get(x, rows[i] * width + j));
  }
  return y;
}

// The problem of `unfolded` with the same queries, keys and values.
inline TreeAttention unfolded_problem(TensorPool& pool, TreeCase c, const TreeAttention& folded,
                                      const TreeCase::Unfolded& unfolded) {
  c.pieces = unfolded.pieces;
  TreeAttention flat = tree_problem(pool, c);
  flat.q = picked_rows(pool, folded.q, unfolded.sources);
  flat.k = picked_rows(pool, folded.k, unfolded.sources);
  flat.v = picked_rows(pool, folded.v, unfolded.sources);
  flat.sinks = folded.sinks;
  return flat;
}

}  // namespace nmoe::test
