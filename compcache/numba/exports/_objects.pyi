from typing import Any

functions: Any

class Memory: ...
