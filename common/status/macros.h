// Early returns for absl::Status and absl::StatusOr.
#ifndef RINGD_COMMON_STATUS_MACROS_H_
#define RINGD_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RINGD_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                  \
    if (absl::Status ringd_status_ = (expr); !ringd_status_.ok()) return ringd_status_; \
  } while (false)

#define RINGD_CONCAT_INNER_(a, b) a##b
#define RINGD_CONCAT_(a, b) RINGD_CONCAT_INNER_(a, b)
#define RINGD_ASSIGN_OR_RETURN(lhs, expr) \
  RINGD_ASSIGN_OR_RETURN_IMPL_(RINGD_CONCAT_(ringd_statusor_, __LINE__), lhs, expr)
#define RINGD_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                 \
  if (!statusor.ok()) return statusor.status();           \
  lhs = *std::move(statusor)

#endif  // RINGD_COMMON_STATUS_MACROS_H_
