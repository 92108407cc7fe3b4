// SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104), for proofs of the job's token.
#ifndef EPL_COMM_SHA256_H_
#define EPL_COMM_SHA256_H_

#include <array>
#include <cstdint>
#include <string>

namespace epl {

using Digest = std::array<uint8_t, 32>;

std::string BytesOf(const Digest& digest);

Digest Sha256(const std::string& data);
Digest HmacSha256(const std::string& key, const std::string& data);

// Takes the same time wherever the two differ.
bool SameDigest(const Digest& a, const uint8_t* b);

}  // namespace epl
#endif  // EPL_COMM_SHA256_H_
