; bool histogram(data: const u8[:], counts: u64[:])
; Adds to counts[b] how often the byte b occurs in the data; false where there are fewer than 256 counters.

define i1 @histogram(ptr %data, i64 %size, ptr %counts, i64 %counters) {
entry:
  %enough = icmp uge i64 %counters, 256
  br i1 %enough, label %begin, label %too_few

too_few:
  ret i1 false

begin:
  %any = icmp ugt i64 %size, 0
  br i1 %any, label %loop, label %done

loop:
  %i = phi i64 [ 0, %begin ], [ %i_next, %loop ]
  %at = getelementptr i8, ptr %data, i64 %i
  %byte = load i8, ptr %at
  %number = zext i8 %byte to i64
  %counter = getelementptr i64, ptr %counts, i64 %number
  %old = load i64, ptr %counter
  %new = add i64 %old, 1
  store i64 %new, ptr %counter
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %size
  br i1 %more, label %loop, label %done

done:
  ret i1 true
}
