#include "quire/quire.h"

const char *quire_version(void) { return QUIRE_VERSION; }
