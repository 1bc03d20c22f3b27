// The few pieces of OpenSSL that ringd needs: random bytes, HMAC, certificates, signatures.
#ifndef RINGD_COMMON_CRYPTO_CRYPTO_H_
#define RINGD_COMMON_CRYPTO_CRYPTO_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ringd {

std::string RandomBytes(size_t count);
std::string HexEncode(const std::string& bytes);
// 32 bytes.
std::string HmacSha256(const std::string& key, const std::string& message);
// Same length and content, in time that doesn't depend on the content.
bool ConstantTimeEqual(const std::string& a, const std::string& b);

struct KeyPair {
  std::string key_pem;  // EC P-256, PKCS#8.
  std::string certificate_pem;
};
// A self-signed CA, valid ten years.
absl::StatusOr<KeyPair> CreateAuthority(const std::string& common_name);
// A certificate for server and client use, signed by `authority`, valid ten years. names: DNS names
// or IP addresses for the subject alternative names; uri: one URI more ("ringd://node/a"), which
// says what it is.
absl::StatusOr<KeyPair> CreateCertificate(const KeyPair& authority, const std::string& common_name,
                                          const std::vector<std::string>& names,
                                          const std::string& uri);

// ECDSA with SHA-256.
absl::StatusOr<std::string> Sign(const std::string& key_pem, const std::string& message);
// authority_pem: one authority or more; certificate_pem: the certificate, then those between it and
// its authority, if any. UNAUTHENTICATED: the certificate is not from an authority, has expired, or
// the signature is not its own.
absl::Status VerifySignature(const std::string& authority_pem, const std::string& certificate_pem,
                             const std::string& message, const std::string& signature);
// The URI names in the certificate ("ringd://node/a").
absl::StatusOr<std::vector<std::string>> CertificateUris(const std::string& certificate_pem);

}  // namespace ringd

#endif  // RINGD_COMMON_CRYPTO_CRYPTO_H_
