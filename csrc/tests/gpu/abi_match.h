// Whether a function type that this library declares can be called through the one that a real header declares. Names
// of types differ on purpose: handles are void* here, enumerations int.
#ifndef EPL_TESTS_ABI_MATCH_H_
#define EPL_TESTS_ABI_MATCH_H_

#include <type_traits>

namespace abi {

// Numbers of one size; structs of one size that are passed in the same way. Pointers are below.
template <class Ours, class Theirs, class = void>
struct Same
    : std::integral_constant<bool, sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
                                       std::is_class<Ours>::value == std::is_class<Theirs>::value &&
                                       std::is_floating_point<Ours>::value == std::is_floating_point<Theirs>::value &&
                                       std::is_trivially_copyable<Ours>::value &&
                                       std::is_trivially_copyable<Theirs>::value> {};

template <>
struct Same<void, void> : std::true_type {};

// A handle: a pointer to something that only the library knows.
template <class Theirs>
struct Same<void*, Theirs*> : std::integral_constant<bool, !std::is_const<Theirs>::value> {};
template <class Theirs>
struct Same<const void*, const Theirs*> : std::true_type {};

// A pointer to a number, a handle or a struct.
template <class Ours, class Theirs>
struct Same<Ours*, Theirs*, typename std::enable_if<!std::is_void<Ours>::value>::type>
    : std::integral_constant<bool, std::is_const<Ours>::value == std::is_const<Theirs>::value &&
                                       // The real configuration may be longer: its beginning is compared by itself.
                                       (std::is_class<Ours>::value ? std::is_class<Theirs>::value
                                                                   : Same<Ours, Theirs>::value)> {};

template <class Ours, class Theirs>
struct Match : std::false_type {};
template <class Result, class OtherResult, class... Args, class... OtherArgs>
struct Match<Result (*)(Args...), OtherResult (*)(OtherArgs...)> {
  template <class... T>
  struct All : std::true_type {};
  template <class First, class... Rest>
  struct All<First, Rest...> : std::integral_constant<bool, First::value && All<Rest...>::value> {};
  template <bool same_length, class = void>
  struct Compare : std::false_type {};
  template <class Unused>
  struct Compare<true, Unused>
      : std::integral_constant<bool, Same<Result, OtherResult>::value && All<Same<Args, OtherArgs>...>::value> {};
  static constexpr bool value = Compare<sizeof...(Args) == sizeof...(OtherArgs)>::value;
};

}  // namespace abi
#endif  // EPL_TESTS_ABI_MATCH_H_
