// page.h as a library, for a peer in another language: it hands over its call.
#include "page.h"

int page_run(int r, int n, const char *path, const char *kind, operation call, int calls, int warm, int sizes, char **size) {
	rank = r, ranks = n;
	if (ranks > SEATS) return 2;
	open_page(path);
	measure(kind_of(kind), call, calls, warm, sizes, size);
	return 0;
}
