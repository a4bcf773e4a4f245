-- Signs and fonts that every formatter of man pages has: code in bold, blocks of it without filling; a minus sign,
-- which can be copied, in code, options and names of programs, in place of a hyphen.
local function raw(text)
    return (text:gsub("\\", "\\e"):gsub("-", "\\-"):gsub("'", "\\(aq"))
end
function Str(str)
    if str.text:find("^[(]?%-%-?%w[%w.,:;=)-]*$") or str.text:find("^tapegrad%-[%w-]+$") then
        return pandoc.RawInline("man", raw(str.text))
    end
end
function Code(code)
    return pandoc.Strong(pandoc.RawInline("man", raw(code.text)))
end
function CodeBlock(block)
    return pandoc.RawBlock("man", ".IP\n.nf\n" .. raw(block.text):gsub("%f[^\n%z]%.", "\\&.") .. "\n.fi")
end
