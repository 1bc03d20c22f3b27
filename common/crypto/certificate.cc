#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"

namespace ringd {
namespace {

template <auto kFree>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using KeyPtr = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, Deleter<X509_free>>;
using BioPtr = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using DigestPtr = std::unique_ptr<EVP_MD_CTX, Deleter<EVP_MD_CTX_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Deleter<X509_STORE_free>>;
// Not what is in it.
using StackPtr =
    std::unique_ptr<STACK_OF(X509), Deleter<[](STACK_OF(X509) * stack) { sk_X509_free(stack); }>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Deleter<X509_STORE_CTX_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, Deleter<GENERAL_NAMES_free>>;

constexpr long kValidSeconds = 10L * 365 * 24 * 3600;
constexpr size_t kMaxCertificates = 64;  // In one file: a chain, or a bundle of authorities.
constexpr long kClockSkewSeconds = 3600;

absl::Status OpenSslError(absl::string_view what) {
  char text[256] = "unknown";
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

BioPtr ReadBio(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string BioContent(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return std::string(data, length);
}

// All certificates of a file, at least one.
absl::StatusOr<std::vector<CertificatePtr>> ReadCertificates(const std::string& pem) {
  std::vector<CertificatePtr> certificates;
  const BioPtr bio = ReadBio(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
    if (certificates.size() > kMaxCertificates)
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxCertificates, " certificates in one file"));
  }
  ERR_clear_error();
  if (certificates.empty()) return absl::InvalidArgumentError("not a PEM certificate");
  return certificates;
}

absl::StatusOr<CertificatePtr> ReadCertificate(const std::string& pem) {
  CertificatePtr certificate(PEM_read_bio_X509(ReadBio(pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("not a PEM certificate");
  }
  return certificate;
}

absl::StatusOr<KeyPtr> ReadKey(const std::string& pem) {
  KeyPtr key(PEM_read_bio_PrivateKey(ReadBio(pem).get(), nullptr, nullptr, nullptr));
  if (key == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("not a PEM private key");
  }
  return key;
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpenSslError(absl::StrCat("certificate extension ", value));
  }
  return absl::OkStatus();
}

// A certificate with a new serial number, not signed yet.
absl::StatusOr<CertificatePtr> NewCertificate(EVP_PKEY* key, const std::string& common_name) {
  CertificatePtr certificate(X509_new());
  const std::string serial = RandomBytes(8);
  uint64_t number = 0;
  for (const unsigned char byte : serial) number = (number << 8) | byte;
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), number >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kClockSkewSeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kValidSeconds);
  X509_set_pubkey(certificate.get(), key);
  const auto* name = reinterpret_cast<const unsigned char*>(common_name.c_str());
  if (X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                 name, -1, -1, 0) != 1) {
    return OpenSslError(absl::StrCat("common name ", common_name));
  }
  return certificate;
}

absl::StatusOr<KeyPair> SignAndEncode(X509* certificate, EVP_PKEY* key, EVP_PKEY* authority_key) {
  if (X509_sign(certificate, authority_key, EVP_sha256()) == 0)
    return OpenSslError("sign certificate");
  BioPtr key_bio(BIO_new(BIO_s_mem())), certificate_bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PKCS8PrivateKey(key_bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) !=
          1 ||
      PEM_write_bio_X509(certificate_bio.get(), certificate) != 1) {
    return OpenSslError("encode certificate");
  }
  return KeyPair{BioContent(key_bio.get()), BioContent(certificate_bio.get())};
}

std::string AlternativeNames(const std::vector<std::string>& names, const std::string& uri) {
  std::string value = absl::StrCat("URI:", uri);
  for (const std::string& name : names) {
    unsigned char buffer[16];
    const bool is_ip = inet_pton(AF_INET, name.c_str(), buffer) == 1 ||
                       inet_pton(AF_INET6, name.c_str(), buffer) == 1;
    absl::StrAppend(&value, is_ip ? ",IP:" : ",DNS:", name);
  }
  return value;
}

bool IsSafeName(const std::string& name) {
  return !name.empty() && name.find_first_of(",\n;\\") == std::string::npos;
}

}  // namespace

absl::StatusOr<KeyPair> CreateAuthority(const std::string& common_name) {
  KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("generate key");
  RINGD_ASSIGN_OR_RETURN(CertificatePtr certificate, NewCertificate(key.get(), common_name));
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  RINGD_RETURN_IF_ERROR(AddExtension(certificate.get(), certificate.get(), NID_basic_constraints,
                                     "critical,CA:TRUE,pathlen:0"));
  RINGD_RETURN_IF_ERROR(AddExtension(certificate.get(), certificate.get(), NID_key_usage,
                                     "critical,keyCertSign,cRLSign"));
  return SignAndEncode(certificate.get(), key.get(), key.get());
}

absl::StatusOr<KeyPair> CreateCertificate(const KeyPair& authority, const std::string& common_name,
                                          const std::vector<std::string>& names,
                                          const std::string& uri) {
  if (!IsSafeName(uri))
    return absl::InvalidArgumentError(absl::StrCat("bad name in certificate: '", uri, "'"));
  for (const std::string& name : names) {
    if (!IsSafeName(name))
      return absl::InvalidArgumentError(absl::StrCat("bad name in certificate: '", name, "'"));
  }
  RINGD_ASSIGN_OR_RETURN(CertificatePtr issuer, ReadCertificate(authority.certificate_pem));
  RINGD_ASSIGN_OR_RETURN(KeyPtr issuer_key, ReadKey(authority.key_pem));
  KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("generate key");
  RINGD_ASSIGN_OR_RETURN(CertificatePtr certificate, NewCertificate(key.get(), common_name));
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
  X509* const raw = certificate.get();
  RINGD_RETURN_IF_ERROR(
      AddExtension(raw, issuer.get(), NID_basic_constraints, "critical,CA:FALSE"));
  RINGD_RETURN_IF_ERROR(
      AddExtension(raw, issuer.get(), NID_key_usage, "critical,digitalSignature"));
  RINGD_RETURN_IF_ERROR(
      AddExtension(raw, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth"));
  RINGD_RETURN_IF_ERROR(
      AddExtension(raw, issuer.get(), NID_subject_alt_name, AlternativeNames(names, uri)));
  return SignAndEncode(raw, key.get(), issuer_key.get());
}

absl::StatusOr<std::string> Sign(const std::string& key_pem, const std::string& message) {
  RINGD_ASSIGN_OR_RETURN(KeyPtr key, ReadKey(key_pem));
  DigestPtr digest(EVP_MD_CTX_new());
  size_t length = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  if (EVP_DigestSignInit(digest.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1 ||
      EVP_DigestSign(digest.get(), nullptr, &length, data, message.size()) != 1) {
    return OpenSslError("sign");
  }
  std::string signature(length, '\0');
  if (EVP_DigestSign(digest.get(), reinterpret_cast<unsigned char*>(signature.data()), &length,
                     data, message.size()) != 1) {
    return OpenSslError("sign");
  }
  signature.resize(length);
  return signature;
}

absl::Status VerifySignature(const std::string& authority_pem, const std::string& certificate_pem,
                             const std::string& message, const std::string& signature) {
  RINGD_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> authorities,
                         ReadCertificates(authority_pem));
  RINGD_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> chain,
                         ReadCertificates(certificate_pem));
  X509* const certificate = chain.front().get();
  StorePtr store(X509_STORE_new());
  for (const CertificatePtr& authority : authorities)
    X509_STORE_add_cert(store.get(), authority.get());
  StackPtr between(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  StoreContextPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), certificate, between.get());
  if (X509_verify_cert(context.get()) != 1) {
    ERR_clear_error();
    return absl::UnauthenticatedError(
        absl::StrCat("certificate refused: ",
                     X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()))));
  }
  DigestPtr digest(EVP_MD_CTX_new());
  const bool good =
      EVP_DigestVerifyInit(digest.get(), nullptr, EVP_sha256(), nullptr,
                           X509_get0_pubkey(certificate)) == 1 &&
      EVP_DigestVerify(digest.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                       signature.size(), reinterpret_cast<const unsigned char*>(message.data()),
                       message.size()) == 1;
  ERR_clear_error();
  return good ? absl::OkStatus()
              : absl::UnauthenticatedError("signature is not the certificate's own");
}

absl::StatusOr<std::vector<std::string>> CertificateUris(const std::string& certificate_pem) {
  RINGD_ASSIGN_OR_RETURN(CertificatePtr certificate, ReadCertificate(certificate_pem));
  NamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      ASN1_STRING_length(text));
  }
  return uris;
}

}  // namespace ringd
