// Arithmetic, comparison, logic and selection on elements. Integers wrap; a division by integer zero gives 0, where
// PyTorch raises. NaN passes through minimum, maximum and clamp.
#include "elementary64.h"
#include "elementwise.h"

namespace hg::aten {

#define HG_OP1(name, ...) struct name { template <class C> static HG_INLINE C of(C a) { __VA_ARGS__ } };
#define HG_OP2(name, ...) struct name { template <class C> static HG_INLINE C of(C a, C b) { __VA_ARGS__ } };
#define HG_OP3(name, ...) struct name { template <class C> static HG_INLINE C of(C a, C b, C c) { __VA_ARGS__ } };

// Signed overflow is undefined in C++ and wraps in PyTorch: integers are added and multiplied as unsigned.
HG_INLINE float plus(float a, float b) { return a + b; }
HG_INLINE double plus(double a, double b) { return a + b; }
HG_INLINE int64_t plus(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
HG_INLINE float times(float a, float b) { return a * b; }
HG_INLINE double times(double a, double b) { return a * b; }
HG_INLINE int64_t times(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
template <class C> HG_INLINE C negated(C a) {
  if constexpr (kSame<C, int64_t>) return int64_t(0 - uint64_t(a));
  else return -a;
}
template <class C> HG_INLINE bool is_nan(C a) { return a != a; }

HG_OP1(copy, return a;)
HG_OP1(neg, return negated(a);)
HG_OP1(abs, if constexpr (kSame<C, int64_t>) return a < 0 ? negated(a) : a; else return a < C(0) ? -a : a + C(0);)
HG_OP1(sign, return C(C(0) < a) - C(a < C(0));)
HG_OP1(relu, return a > C(0) || is_nan(a) ? a : C(0);)
HG_OP1(logical_not, return C(a == C(0));)
HG_OP1(isnan, return C(is_nan(a));)
HG_OP1(isinf, return C(a == C(kInfinity) || a == C(-kInfinity));)
HG_OP1(reciprocal, return C(1) / a;)
HG_OP1(bitwise_not, return ~a;)

HG_OP2(add, return plus(a, b);)
HG_OP2(sub, return plus(a, negated(b));)
HG_OP2(mul, return times(a, b);)
HG_OP2(div, return a / b;)
HG_OP2(eq, return C(a == b);)
HG_OP2(ne, return C(a != b);)
HG_OP2(lt, return C(a < b);)
HG_OP2(le, return C(a <= b);)
HG_OP2(gt, return C(a > b);)
HG_OP2(ge, return C(a >= b);)
HG_OP2(minimum, return is_nan(a) || a < b ? a : b;)
HG_OP2(maximum, return is_nan(a) || a > b ? a : b;)
HG_OP2(logical_and, return C((a != C(0)) & (b != C(0)));)
HG_OP2(logical_or, return C((a != C(0)) | (b != C(0)));)
HG_OP2(logical_xor, return C((a != C(0)) != (b != C(0)));)
HG_OP2(bitwise_and, return a & b;)
HG_OP2(bitwise_or, return a | b;)
HG_OP2(bitwise_xor, return a ^ b;)
HG_OP2(shift_left, return uint64_t(b) < 64 ? int64_t(uint64_t(a) << b) : 0;)
HG_OP2(shift_right, return a >> (uint64_t(b) < 63 ? b : 63);)

HG_INLINE double quotient(double a, double b) { return truncate(a / b); }
HG_INLINE int64_t quotient(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? negated(a) : a / b; }
HG_INLINE double rest(double a, double b) { return hg::fmod(a, b); }
HG_INLINE int64_t rest(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
HG_INLINE float quotient(float a, float b) { return float(truncate(double(a / b))); }
HG_INLINE float rest(float a, float b) { return float(hg::fmod(double(a), double(b))); }  // exact
template <class C> HG_INLINE C modulo(C a, C b) {  // the sign of the divisor
  const C r = rest(a, b);
  return r != C(0) && (b < C(0)) != (r < C(0)) ? r + b : r;
}
template <class C> HG_INLINE C floored(C a, C b) {  // Python's //
  if constexpr (kSame<C, int64_t>) {
    const int64_t q = quotient(a, b);
    return rest(a, b) != 0 && (a < 0) != (b < 0) ? q - 1 : q;
  } else {
    if (b == C(0)) return a / b;
    const C r = rest(a, b);
    C q = (a - r) / b;
    if (r != C(0) && (b < C(0)) != (r < C(0))) q -= C(1);
    if (q == C(0)) return C(__builtin_copysign(0.0, double(a / b)));
    const C whole = C(floor(double(q)));
    return q - whole > C(0.5) ? whole + C(1) : whole;
  }
}
HG_OP2(div_trunc, return quotient(a, b);)
HG_OP2(div_floor, return floored(a, b);)
HG_OP2(fmod, return rest(a, b);)
HG_OP2(remainder, return modulo(a, b);)

struct pow {
  static double of(double a, double b) { return hg::pow(a, b); }
  static float of(float a, float b) { return float(hg::pow(double(a), double(b))); }
  static int64_t of(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) != 0 ? -1 : 1) : 0;
    int64_t y = 1;
    for (; b > 0; b >>= 1, a = times(a, a)) y = (b & 1) != 0 ? times(y, a) : y;
    return y;
  }
};

HG_OP3(add_scaled, return plus(a, times(b, c));)  // a + alpha b; with alpha = -1 a subtraction, rounded once each
HG_OP3(scale_shift, return plus(times(a, b), c);)
HG_OP3(where, return a != C(0) ? b : c;)
HG_OP3(clamp, const C low = is_nan(a) || is_nan(b) ? a + b : a < b ? b : a; return is_nan(low) || is_nan(c) ? low + c : low > c ? c : low;)
HG_OP3(leaky, return a > C(0) ? a * c : a * b;)  // slopes below and above zero
HG_OP3(triu, return b >= c ? a : C(0);)          // keeps where column >= row
HG_OP3(tril, return b <= c ? a : C(0);)
struct elu {  // a > 0: scale * a, else coefficient * (e^a - 1)
  static double of(double a, double coefficient, double scale) { return a > 0.0 ? a * scale : a == a ? hg::expm1(a) * coefficient : a; }
  static float of(float a, float b, float c) { return float(of(double(a), double(b), double(c))); }
};

// ---- numbers from their index --------------------------------------------------------------------------------------
struct Arange { void *out; uint64_t start, step; int64_t stride; uint64_t count; uint32_t type; };
template <class C> void arange(const Arange &p, uint32_t first, uint32_t last) {
  C buffer[kTile];
  const C start = constant<C>(p.start), step = constant<C>(p.step);
  const Line line(p.count, p.stride);
  const uint64_t end = min_of(uint64_t(last) * kElementsPerBlock, p.count);
  for (uint64_t at = uint64_t(first) * kElementsPerBlock; at < end; at += kTile) {
    const uint64_t count = min_of(kTile, end - at);
    for (uint64_t i = 0; i < count; ++i) buffer[i] = plus(start, times(C(at + i), step));
    scatter(line.shape(), p.out, p.type, line.strides, at, count, buffer);
  }
}

// ---- bytes moved as they are, whatever they mean ---------------------------------------------------------------------
struct Move { void *out; const void *in; int64_t shape[kMaxRank]; int64_t strides[2 * kMaxRank]; uint64_t count; uint32_t rank; };
template <class T> void move(const Move &p, uint32_t first, uint32_t last) {
  const uint64_t start = uint64_t(first) * kElementsPerBlock, end = min_of(uint64_t(last) * kElementsPerBlock, p.count);
  if (start >= end) return;
  const int64_t *const strides[] = {p.strides, p.strides + kMaxRank};
  const int64_t to_step = strides[0][p.rank - 1], from_step = strides[1][p.rank - 1];
  for_runs<2>(p.rank, p.shape, strides, start, end - start, [&](const int64_t(&offset)[2], uint64_t run) {
    T *to = static_cast<T *>(p.out) + offset[0];
    const T *from = static_cast<const T *>(p.in) + offset[1];
    if (to_step == 1 && from_step == 1) for (uint64_t i = 0; i < run; ++i) to[i] = from[i];
    else for (uint64_t i = 0; i < run; ++i) to[int64_t(i) * to_step] = from[int64_t(i) * from_step];
  });
}

}  // namespace hg::aten

HG_POINTERS(hg::aten::Arange, out)
HG_POINTERS(hg::aten::Move, out, in)

using hg::aten::arange;
using hg::aten::move;
HG_MODULE("aten_pointwise",
          HG_EVERY(1, copy), HG_EVERY(1, neg), HG_EVERY(1, abs), HG_EVERY(1, sign), HG_EVERY(1, relu),
          HG_EVERY(1, logical_not), HG_REAL(1, isnan), HG_REAL(1, isinf), HG_REAL(1, reciprocal), HG_I64(1, bitwise_not),
          HG_EVERY(2, add), HG_EVERY(2, sub), HG_EVERY(2, mul), HG_REAL(2, div), HG_EVERY(2, eq), HG_EVERY(2, ne),
          HG_EVERY(2, lt), HG_EVERY(2, le), HG_EVERY(2, gt), HG_EVERY(2, ge), HG_EVERY(2, minimum), HG_EVERY(2, maximum),
          HG_EVERY(2, logical_and), HG_EVERY(2, logical_or), HG_EVERY(2, logical_xor), HG_I64(2, bitwise_and),
          HG_I64(2, bitwise_or), HG_I64(2, bitwise_xor), HG_I64(2, shift_left), HG_I64(2, shift_right),
          HG_EVERY(2, div_trunc), HG_EVERY(2, div_floor), HG_EVERY(2, fmod), HG_EVERY(2, remainder), HG_EVERY(2, pow),
          HG_EVERY(3, add_scaled), HG_EVERY(3, scale_shift), HG_EVERY(3, where), HG_EVERY(3, clamp), HG_REAL(3, leaky),
          HG_EVERY(3, triu), HG_EVERY(3, tril), HG_REAL(3, elu),
          hg::function<arange<double>>("arange_f64"), hg::function<arange<int64_t>>("arange_i64"),
          hg::function<move<uint8_t>>("move_1"), hg::function<move<uint16_t>>("move_2"),
          hg::function<move<uint32_t>>("move_4"), hg::function<move<uint64_t>>("move_8"))
