/* Finds the section of the __shared__ variables in the program's ELF file. The linker defines
 * symbols for the ends of a section whose name is a C identifier, but variables in such sections
 * get no redzones. */
#include "emulation.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Search {
    const char *name;
    Section found;
};

static bool covers(const dl_phdr_info *module, const void *address)
{
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &module->dlpi_phdr[i];
        const uintptr_t begin = module->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && (uintptr_t)address >= begin &&
            (uintptr_t)address - begin < segment->p_memsz)
            return true;
    }
    return false;
}

static void read_at(FILE *file, long at, void *to, size_t size)
{
    if (fseek(file, at, SEEK_SET) != 0 || fread(to, 1, size, file) != size)
        emulation_abort("the program's file cannot be read");
}

static void search_file(FILE *file, ElfW(Addr) base, Search *search)
{
    ElfW(Ehdr) header;
    ElfW(Shdr) names, section;
    read_at(file, 0, &header, sizeof header);
    const long sections = (long)header.e_shoff;
    read_at(file, sections + header.e_shstrndx * header.e_shentsize, &names, sizeof names);
    for (int i = 0; i < header.e_shnum; i++) {
        char name[64] = "";
        read_at(file, sections + i * header.e_shentsize, &section, sizeof section);
        if (section.sh_name + strlen(search->name) + 1 > names.sh_size)
            continue;
        read_at(file, (long)(names.sh_offset + section.sh_name), name, strlen(search->name) + 1);
        if (strcmp(name, search->name) == 0)
            search->found = { (char *)(base + section.sh_addr), section.sh_size };
    }
}

/* Searches the module if it is the program or library that contains this function. */
static int search_module(dl_phdr_info *module, size_t, void *search)
{
    if (!covers(module, (const void *)search_module))
        return 0;
    const char *path = *module->dlpi_name ? module->dlpi_name : "/proc/self/exe";
    FILE *file = fopen(path, "rb");
    if (!file)
        emulation_abort("%s cannot be read", path);
    search_file(file, module->dlpi_addr, (Search *)search);
    fclose(file);
    return 1;
}

Section emulation_section(const char *name)
{
    Search search = { name, { NULL, 0 } };
    dl_iterate_phdr(search_module, &search);
    return search.found;
}
