; u32 crc32(data: const u8[:])
; The checksum of zlib and PNG. The look-up table is a global that the module only declares: the cache stores a
; snapshot of the array that Python computed, and decodes it for those who load a function that uses it.

@crc_table = external global [256 x i32]

define i32 @crc32(ptr %data, i64 %size) {
entry:
  %any = icmp ugt i64 %size, 0
  br i1 %any, label %loop, label %done

loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
  %crc = phi i32 [ -1, %entry ], [ %crc_next, %loop ]
  %at = getelementptr i8, ptr %data, i64 %i
  %byte = load i8, ptr %at
  %wide = zext i8 %byte to i32
  %mixed = xor i32 %crc, %wide
  %low = and i32 %mixed, 255
  %number = zext i32 %low to i64
  %entry_at = getelementptr [256 x i32], ptr @crc_table, i64 0, i64 %number
  %value = load i32, ptr %entry_at
  %shifted = lshr i32 %crc, 8
  %crc_next = xor i32 %shifted, %value
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %size
  br i1 %more, label %loop, label %done

done:
  %last = phi i32 [ -1, %entry ], [ %crc_next, %loop ]
  %result = xor i32 %last, -1
  ret i32 %result
}
