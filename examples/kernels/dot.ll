; f64 dot(a: const f64[:], b: const f64[:])
; The inner product of two vectors, over the length of the shorter one.

define double @dot(ptr %a, i64 %a_size, ptr %b, i64 %b_size) {
entry:
  %a_shorter = icmp slt i64 %a_size, %b_size
  %size = select i1 %a_shorter, i64 %a_size, i64 %b_size
  %any = icmp sgt i64 %size, 0
  br i1 %any, label %loop, label %done

loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
  %sum = phi double [ 0.0, %entry ], [ %sum_next, %loop ]
  %x_at = getelementptr double, ptr %a, i64 %i
  %y_at = getelementptr double, ptr %b, i64 %i
  %x = load double, ptr %x_at
  %y = load double, ptr %y_at
  %product = fmul double %x, %y
  %sum_next = fadd double %sum, %product
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %size
  br i1 %more, label %loop, label %done

done:
  %result = phi double [ 0.0, %entry ], [ %sum_next, %loop ]
  ret double %result
}
