// Sets of Unicode's code points, as split patterns name them.
#pragma once

#include <span>
#include <vector>

namespace nmoe {

// A value: of code points 0 ... 0x10FFFF, surrogates included.
class CodePointSet {
 public:
  struct Range {
    char32_t first;
    char32_t last;  // included
    bool operator==(const Range&) const = default;
  };

  CodePointSet() = default;
  explicit CodePointSet(std::vector<Range> ranges);  // in any order, overlapping or not

  std::span<const Range> ranges() const { return ranges_; }  // ascending, with gaps between
  bool empty() const { return ranges_.empty(); }
  bool contains(char32_t code_point) const;
  bool includes(const CodePointSet& other) const { return (other - *this).empty(); }

  CodePointSet operator|(const CodePointSet& other) const;
  CodePointSet operator&(const CodePointSet& other) const { return ~(~*this | ~other); }
  CodePointSet operator-(const CodePointSet& other) const { return *this & ~other; }
  CodePointSet operator~() const;
  CodePointSet& operator|=(const CodePointSet& other) { return *this = *this | other; }
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace nmoe
