; i64 sieve(flags: u8[:])
; Sets flags[n] to 1 where n is prime and to 0 elsewhere (Eratosthenes); returns how many primes there are.

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define i64 @sieve(ptr %flags, i64 %size) {
entry:
  %any = icmp ugt i64 %size, 2
  br i1 %any, label %begin, label %too_small

too_small:
  call void @llvm.memset.p0.i64(ptr %flags, i8 0, i64 %size, i1 false)
  ret i64 0

begin:
  call void @llvm.memset.p0.i64(ptr %flags, i8 1, i64 %size, i1 false)
  call void @llvm.memset.p0.i64(ptr %flags, i8 0, i64 2, i1 false)
  br label %number

number:
  %n = phi i64 [ 2, %begin ], [ %n_next, %next_number ]
  %primes = phi i64 [ 0, %begin ], [ %primes_next, %next_number ]
  %n_at = getelementptr i8, ptr %flags, i64 %n
  %flag = load i8, ptr %n_at
  %is_prime = icmp ne i8 %flag, 0
  %one = zext i1 %is_prime to i64
  %primes_next = add i64 %primes, %one
  br i1 %is_prime, label %prime, label %next_number

prime:
  %square = mul i64 %n, %n
  br label %multiple

multiple:
  %m = phi i64 [ %square, %prime ], [ %m_next, %strike ]
  %in_range = icmp ult i64 %m, %size
  br i1 %in_range, label %strike, label %next_number

strike:
  %m_at = getelementptr i8, ptr %flags, i64 %m
  store i8 0, ptr %m_at
  %m_next = add i64 %m, %n
  br label %multiple

next_number:
  %n_next = add i64 %n, 1
  %more = icmp ult i64 %n_next, %size
  br i1 %more, label %number, label %done

done:
  ret i64 %primes_next
}
