/* QuickJS: a context for each text, which is evaluated; the result, or the exception, as a string. */
#include <stdlib.h>
#include <string.h>
#include "quickjs.h"

long evaluate(const char *in, long size, char *out, long room) {
    JSRuntime *runtime = JS_NewRuntime();
    JSContext *context = JS_NewContext(runtime);
    char *text = malloc(size + 1);
    memcpy(text, in, size);
    text[size] = 0;
    JSValue value = JS_Eval(context, text, size, "<input>", JS_EVAL_TYPE_GLOBAL);
    free(text);
    if (JS_IsException(value)) {
        value = JS_GetException(context);
    }
    size_t length = 0;
    const char *shown = JS_ToCStringLen(context, &length, value);
    long result = -1;
    if (shown != NULL && (long)length <= room) {
        memcpy(out, shown, length);
        result = (long)length;
    }
    JS_FreeCString(context, shown);
    JS_FreeValue(context, value);
    JS_FreeContext(context);
    JS_FreeRuntime(runtime);
    return result;
}
