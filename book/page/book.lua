-- A pandoc filter for the book's pages. Code blocks with these attributes are replaced:
--   {.c file=ops/rows/softmax.c function=softmax_row}   the function's lines; struct=NAME: the type's
--   {.output section=forward}   the lines below "[forward]" in the output of the chapter's program
--   {.include file=book/page/copy.html}   an HTML file, in which @OUTPUT@ is the whole output; with
--       output=copy that of another program, whose path is the metadata's value copy
-- What is missing, or defined twice, ends the build. Metadata: output, the output's path; chapters, a
-- list of words, and name, the page's, for its links to the chapters beside it. A page whose name is no
-- chapter's, as an appendix, has no number and no such links.
local output, metadata

local function lines_of(path)
    local file = assert(io.open(path), path .. ' cannot be read')
    local list = {}
    for line in file:lines() do
        list[#list + 1] = line
    end
    file:close()
    return list
end

-- The lines first to last of path, where begins(line) is true for one line, and ends(line) later.
local function definition(path, name, begins, ends)
    local list, first = lines_of(path), nil
    for i, line in ipairs(list) do
        if begins(line) then
            assert(not first, path .. ' has two definitions of ' .. name)
            first = i
        end
    end
    assert(first, path .. ' has no ' .. name)
    for i = first, #list do
        if ends(list[i]) then
            return table.concat(list, '\n', first, i), first, i
        end
    end
    error(path .. ': ' .. name .. ' has no end')
end

local function function_lines(path, name)
    return definition(path, name, function(line)
        return line:match('^[%a_]') and line:match('[%s%*]' .. name .. '%(') and not line:match(';%s*$')
    end, function(line) return line == '}' end)
end

local function struct_lines(path, name)
    return definition(path, name, function(line)
        return line:match('^typedef struct ' .. name .. ' {') or line:match('^struct ' .. name .. ' {')
    end, function(line) return line:match('^}') end)
end

local function section_lines(name)
    local text, inside, found = {}, false, false
    for _, line in ipairs(lines_of(output)) do
        local header = line:match('^%[(.*)%]$')
        if header then
            inside = header == name
            found = found or inside
        elseif inside then
            text[#text + 1] = line
        end
    end
    assert(found and #text > 0, output .. ' has no section ' .. name)
    return table.concat(text, '\n')
end

local function escaped(text)
    return (text:gsub('[&<>]', { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;' }))
end

local function code(block)
    local a = block.attributes
    if block.classes:includes('include') then
        local path = a.output and pandoc.utils.stringify(metadata[a.output]) or output
        local html = table.concat(lines_of(a.file), '\n')
        local text = escaped(table.concat(lines_of(path), '\n'))
        return pandoc.RawBlock('html', (html:gsub('@OUTPUT@', function() return text end)))
    elseif a.file then
        local text, first, last = (a.struct and struct_lines or function_lines)(a.file,
                                                                               a.struct or a['function'])
        local where = a.file .. ':' .. first .. '-' .. last
        return pandoc.Div({ pandoc.CodeBlock(text, pandoc.Attr('', { 'c' })),
                            pandoc.Para({ pandoc.Code(where) }) }, pandoc.Attr('', { 'listing' }))
    elseif a.section then
        return pandoc.CodeBlock(section_lines(a.section), pandoc.Attr('', { 'output' }))
    end
end

-- texmath's MathML, without what HTML does not need (a third of the page), and with the spaces of TeX:
-- none between a sign and a function's name, and none behind the minus of a negative number. Chromium puts
-- a combining hat or tilde beside its letter, and the same sign with a width of its own above it.
local FUNCTIONS = { 'exp', 'ln', 'max', 'min', 'softmax', 'tanh' }
local function mathml(element)
    local plain = pandoc.Pandoc({ pandoc.Plain({ element }) })
    local html = pandoc.write(plain, 'html5', { html_math_method = 'mathml' })
    html = html:gsub('<annotation.-</annotation>', ''):gsub('</?semantics>', '')
    html = html:gsub(' xmlns="[^"]*"', ''):gsub(' display="inline"', '')
    html = html:gsub('>\u{302}</mo>', '>\u{2C6}</mo>'):gsub('>\u{303}</mo>', '>\u{2DC}</mo>')
    for _, name in ipairs(FUNCTIONS) do
        html = html:gsub('<mo>' .. name .. '</mo>', '<mo lspace="0.167em" rspace="0.167em">' .. name .. '</mo>')
    end
    for _, before in ipairs({ '<%a[^>]*>', '</mo>', '</mspace>' }) do
        html = html:gsub('(' .. before .. '<mo) lspace="0.167em"', '%1 lspace="0"')
    end
    html = html:gsub('rspace="0.167em"(>%a+</mo><mo[^>]*>%()', 'rspace="0"%1')
    for _, before in ipairs({ '<mo>[=,]</mo>', '<mo>\u{2190}</mo>', 'form="prefix">.</mo>' }) do
        html = html:gsub('(' .. before .. ')<mo>\u{2212}', '%1<mo form="prefix">\u{2212}')
    end
    return pandoc.RawInline('html', html)
end

-- Without this, texmath makes every pair of brackets stretch; \left and \right still do.
local function math(element)
    local kept, text = {}, element.text
    local function keep(match)
        kept[#kept + 1] = match
        return '\1' .. #kept .. '\2'
    end
    for _, pattern in ipairs({ '\\left%s*[%(%[]', '\\right%s*[%)%]]', '\\sqrt%b[]' }) do
        text = text:gsub(pattern, keep)
    end
    text = text:gsub('[%(%)%[%]]', '{%0}')
    element.text = text:gsub('\1(%d+)\2', function(i) return kept[tonumber(i)] end)
    return mathml(element)
end

-- A line may not end between a formula and the comma behind it, nor behind a bracket before it.
local function inlines(list)
    local made, run, formulas = pandoc.Inlines({}), pandoc.Inlines({}), 0
    local function flush()
        if formulas > 0 and #run > formulas then
            made:insert(pandoc.Span(run, pandoc.Attr('', { 'whole' })))
        else
            made:extend(run)
        end
        run, formulas = pandoc.Inlines({}), 0
    end
    for _, item in ipairs(list) do
        local is_formula = item.t == 'RawInline' and item.text:match('^<math>')
        if is_formula or item.t == 'Str' then
            run:insert(item)
            formulas = formulas + (is_formula and 1 or 0)
        else
            flush()
            made:insert(item)
        end
    end
    flush()
    return made
end

local function meta(data)
    local words = {}
    metadata = data
    output = data.output and pandoc.utils.stringify(data.output)
    for word in pandoc.utils.stringify(data.chapters):gmatch('%S+') do
        words[#words + 1] = word
    end
    local name = pandoc.utils.stringify(data.name)
    data.chapter = name ~= 'index'
    for i, word in ipairs(words) do
        if word == name then
            data.previous = words[i - 1]
            data.next = words[i + 1]
            data.title = pandoc.Inlines({ pandoc.Str(i .. '. ') }) .. data.title
        end
    end
    return data
end

return { { Meta = meta }, { CodeBlock = code, Math = math }, { Inlines = inlines } }
