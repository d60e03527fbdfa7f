; i64 levenshtein(a: cstr, b: cstr)
; The edit distance of two texts, in bytes; -1 when memory for one row cannot be allocated. `strlen`, `malloc` and `free`
; are native symbols of the process.

declare i64 @strlen(ptr)
declare ptr @malloc(i64)
declare void @free(ptr)
declare i64 @llvm.umin.i64(i64, i64)

define i64 @levenshtein(ptr %a, ptr %b) {
entry:
  %columns = call i64 @strlen(ptr %b)
  %cells = add i64 %columns, 1
  %size = mul i64 %cells, 8
  %row = call ptr @malloc(i64 %size)
  %failed = icmp eq ptr %row, null
  br i1 %failed, label %no_memory, label %fill

no_memory:
  ret i64 -1

fill:
  %k = phi i64 [ 0, %entry ], [ %k_next, %fill ]
  %k_at = getelementptr i64, ptr %row, i64 %k
  store i64 %k, ptr %k_at
  %k_next = add i64 %k, 1
  %filling = icmp ult i64 %k_next, %cells
  br i1 %filling, label %fill, label %next_row

next_row:
  %i = phi i64 [ 0, %fill ], [ %i_next, %end_row ]
  %a_at = getelementptr i8, ptr %a, i64 %i
  %a_char = load i8, ptr %a_at
  %end_of_a = icmp eq i8 %a_char, 0
  %i_next = add i64 %i, 1
  br i1 %end_of_a, label %done, label %begin_row

begin_row:
  store i64 %i_next, ptr %row
  br label %cell

cell:
  %j = phi i64 [ 0, %begin_row ], [ %j_next, %cell_body ]
  %diagonal = phi i64 [ %i, %begin_row ], [ %above, %cell_body ]
  %left = phi i64 [ %i_next, %begin_row ], [ %best, %cell_body ]
  %in_row = icmp ult i64 %j, %columns
  br i1 %in_row, label %cell_body, label %end_row

cell_body:
  %j_next = add i64 %j, 1
  %above_at = getelementptr i64, ptr %row, i64 %j_next
  %above = load i64, ptr %above_at
  %b_at = getelementptr i8, ptr %b, i64 %j
  %b_char = load i8, ptr %b_at
  %differ = icmp ne i8 %a_char, %b_char
  %cost = zext i1 %differ to i64
  %replace = add i64 %diagonal, %cost
  %delete = add i64 %above, 1
  %insert = add i64 %left, 1
  %shift = call i64 @llvm.umin.i64(i64 %delete, i64 %insert)
  %best = call i64 @llvm.umin.i64(i64 %replace, i64 %shift)
  store i64 %best, ptr %above_at
  br label %cell

end_row:
  br label %next_row

done:
  %last_at = getelementptr i64, ptr %row, i64 %columns
  %distance = load i64, ptr %last_at
  call void @free(ptr %row)
  ret i64 %distance
}
