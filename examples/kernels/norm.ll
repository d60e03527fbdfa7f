; f64 norm(x: const f64[:])
; The length of a vector. `dot` is in another module: the cache binds the two when `norm` is loaded.

declare double @dot(ptr, i64, ptr, i64)
declare double @llvm.sqrt.f64(double)

define double @norm(ptr %x, i64 %size) {
  %square = call double @dot(ptr %x, i64 %size, ptr %x, i64 %size)
  %length = call double @llvm.sqrt.f64(double %square)
  ret double %length
}
