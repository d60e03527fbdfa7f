; i64 mandelbrot(image: u8[:], width: i64, limit: u8)
; Draws the Mandelbrot set from (-2, -1.25) to (0.5, 1.25): each point gets the number of steps until |z| > 2, at
; most `limit`. The height follows from the image's size. Returns how many points stayed inside.

define internal i8 @escape_time(double %cx, double %cy, i8 %limit) {
entry:
  br label %step

step:
  %count = phi i8 [ 0, %entry ], [ %count_next, %inside ]
  %x = phi double [ 0.0, %entry ], [ %x_next, %inside ]
  %y = phi double [ 0.0, %entry ], [ %y_next, %inside ]
  %xx = fmul double %x, %x
  %yy = fmul double %y, %y
  %square = fadd double %xx, %yy
  %near = fcmp ole double %square, 4.0
  %again = icmp ult i8 %count, %limit
  %both = and i1 %near, %again
  br i1 %both, label %inside, label %done

inside:
  %difference = fsub double %xx, %yy
  %x_next = fadd double %difference, %cx
  %x_twice = fadd double %x, %x
  %product = fmul double %x_twice, %y
  %y_next = fadd double %product, %cy
  %count_next = add i8 %count, 1
  br label %step

done:
  ret i8 %count
}

define i64 @mandelbrot(ptr %image, i64 %size, i64 %width, i8 %limit) {
entry:
  %drawable = icmp sgt i64 %width, 0
  br i1 %drawable, label %start, label %empty

empty:
  ret i64 0

start:
  %height = sdiv i64 %size, %width
  %points = mul i64 %height, %width
  %any = icmp sgt i64 %points, 0
  %columns = sitofp i64 %width to double
  %rows = sitofp i64 %height to double
  %x_step = fdiv double 2.5, %columns
  %y_step = fdiv double 2.5, %rows
  br i1 %any, label %point, label %empty

point:
  %at = phi i64 [ 0, %start ], [ %at_next, %point ]
  %inside = phi i64 [ 0, %start ], [ %inside_next, %point ]
  %row = sdiv i64 %at, %width
  %column = srem i64 %at, %width
  %column_real = sitofp i64 %column to double
  %row_real = sitofp i64 %row to double
  %x_offset = fmul double %column_real, %x_step
  %y_offset = fmul double %row_real, %y_step
  %cx = fadd double %x_offset, -2.0
  %cy = fadd double %y_offset, -1.25
  %time = call i8 @escape_time(double %cx, double %cy, i8 %limit)
  %pixel = getelementptr i8, ptr %image, i64 %at
  store i8 %time, ptr %pixel
  %stayed = icmp eq i8 %time, %limit
  %one = zext i1 %stayed to i64
  %inside_next = add i64 %inside, %one
  %at_next = add i64 %at, 1
  %more = icmp slt i64 %at_next, %points
  br i1 %more, label %point, label %finished

finished:
  ret i64 %inside_next
}
