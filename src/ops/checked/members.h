// The members of an aggregate, one by one, without their being listed anywhere.
#pragma once

#include <cstddef>

namespace nmoe::checked {

constexpr size_t kMostMembers = 64;  // more are a few more lines below

struct AnyMember {
  template <class T>
  operator T() const;
};
// With how many values T can be initialised.
template <class T, class... Values>
constexpr size_t num_members() {
  if constexpr (requires { T{Values{}..., AnyMember{}}; }) {
    return num_members<T, Values..., AnyMember>();
  } else {
    return sizeof...(Values);
  }
}

// Names for so many members: those of the line before, and one more.
#define NMOE_NAMES_1 m1
#define NMOE_NAMES_2 NMOE_NAMES_1, m2
#define NMOE_NAMES_3 NMOE_NAMES_2, m3
#define NMOE_NAMES_4 NMOE_NAMES_3, m4
#define NMOE_NAMES_5 NMOE_NAMES_4, m5
#define NMOE_NAMES_6 NMOE_NAMES_5, m6
#define NMOE_NAMES_7 NMOE_NAMES_6, m7
#define NMOE_NAMES_8 NMOE_NAMES_7, m8
#define NMOE_NAMES_9 NMOE_NAMES_8, m9
#define NMOE_NAMES_10 NMOE_NAMES_9, m10
#define NMOE_NAMES_11 NMOE_NAMES_10, m11
#define NMOE_NAMES_12 NMOE_NAMES_11, m12
#define NMOE_NAMES_13 NMOE_NAMES_12, m13
#define NMOE_NAMES_14 NMOE_NAMES_13, m14
#define NMOE_NAMES_15 NMOE_NAMES_14, m15
#define NMOE_NAMES_16 NMOE_NAMES_15, m16
#define NMOE_NAMES_17 NMOE_NAMES_16, m17
#define NMOE_NAMES_18 NMOE_NAMES_17, m18
#define NMOE_NAMES_19 NMOE_NAMES_18, m19
#define NMOE_NAMES_20 NMOE_NAMES_19, m20
#define NMOE_NAMES_21 NMOE_NAMES_20, m21
#define NMOE_NAMES_22 NMOE_NAMES_21, m22
#define NMOE_NAMES_23 NMOE_NAMES_22, m23
#define NMOE_NAMES_24 NMOE_NAMES_23, m24
#define NMOE_NAMES_25 NMOE_NAMES_24, m25
#define NMOE_NAMES_26 NMOE_NAMES_25, m26
#define NMOE_NAMES_27 NMOE_NAMES_26, m27
#define NMOE_NAMES_28 NMOE_NAMES_27, m28
#define NMOE_NAMES_29 NMOE_NAMES_28, m29
#define NMOE_NAMES_30 NMOE_NAMES_29, m30
#define NMOE_NAMES_31 NMOE_NAMES_30, m31
#define NMOE_NAMES_32 NMOE_NAMES_31, m32
#define NMOE_NAMES_33 NMOE_NAMES_32, m33
#define NMOE_NAMES_34 NMOE_NAMES_33, m34
#define NMOE_NAMES_35 NMOE_NAMES_34, m35
#define NMOE_NAMES_36 NMOE_NAMES_35, m36
#define NMOE_NAMES_37 NMOE_NAMES_36, m37
#define NMOE_NAMES_38 NMOE_NAMES_37, m38
#define NMOE_NAMES_39 NMOE_NAMES_38, m39
#define NMOE_NAMES_40 NMOE_NAMES_39, m40
#define NMOE_NAMES_41 NMOE_NAMES_40, m41
#define NMOE_NAMES_42 NMOE_NAMES_41, m42
#define NMOE_NAMES_43 NMOE_NAMES_42, m43
#define NMOE_NAMES_44 NMOE_NAMES_43, m44
#define NMOE_NAMES_45 NMOE_NAMES_44, m45
#define NMOE_NAMES_46 NMOE_NAMES_45, m46
#define NMOE_NAMES_47 NMOE_NAMES_46, m47
#define NMOE_NAMES_48 NMOE_NAMES_47, m48
#define NMOE_NAMES_49 NMOE_NAMES_48, m49
#define NMOE_NAMES_50 NMOE_NAMES_49, m50
#define NMOE_NAMES_51 NMOE_NAMES_50, m51
#define NMOE_NAMES_52 NMOE_NAMES_51, m52
#define NMOE_NAMES_53 NMOE_NAMES_52, m53
#define NMOE_NAMES_54 NMOE_NAMES_53, m54
#define NMOE_NAMES_55 NMOE_NAMES_54, m55
#define NMOE_NAMES_56 NMOE_NAMES_55, m56
#define NMOE_NAMES_57 NMOE_NAMES_56, m57
#define NMOE_NAMES_58 NMOE_NAMES_57, m58
#define NMOE_NAMES_59 NMOE_NAMES_58, m59
#define NMOE_NAMES_60 NMOE_NAMES_59, m60
#define NMOE_NAMES_61 NMOE_NAMES_60, m61
#define NMOE_NAMES_62 NMOE_NAMES_61, m62
#define NMOE_NAMES_63 NMOE_NAMES_62, m63
#define NMOE_NAMES_64 NMOE_NAMES_63, m64
// clang-format off
#define NMOE_FOR_EACH_COUNT(X) \
  X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
  X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) X(32) \
  X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47) X(48) \
  X(49) X(50) X(51) X(52) X(53) X(54) X(55) X(56) X(57) X(58) X(59) X(60) X(61) X(62) X(63) X(64)
// clang-format on

// Calls fn(members&...) with all of them, in their order.
template <class T, class Fn>
void with_members(T& value, const Fn& fn) {
  constexpr size_t kCount = num_members<T>();
  static_assert(kCount <= kMostMembers);
#define NMOE_BIND(count)                \
  if constexpr (kCount == (count)) {    \
    auto& [NMOE_NAMES_##count] = value; \
    fn(NMOE_NAMES_##count);             \
  }
  NMOE_FOR_EACH_COUNT(NMOE_BIND)
#undef NMOE_BIND
}
#undef NMOE_FOR_EACH_COUNT

}  // namespace nmoe::checked
