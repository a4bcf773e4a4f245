-- Links of a page to other files: to those that the package has, by their names there; of others
-- the text is left.
local out, up

local function target(path)
    if path:find("://") or path:find("^#") then
        return path
    end
    local file, section = path:match("^([^#]*)(.*)$")
    if file:find("^%.%./") then
        file = file:sub(4)
    elseif up ~= "" then
        file = "docs/" .. file
    end
    file = file:gsub("^book/README%.md$", "book/index.html"):gsub("^book/(%w+)/page%.md$", "book/%1.html")
    file = file:gsub("%.md$", ".html")
    local there = io.open(out .. "/" .. file)
    return there and there:close() and up .. file .. section
end

return {
    { Meta = function(meta)
        out, up = pandoc.utils.stringify(meta.out), pandoc.utils.stringify(meta.up)
    end },
    { Link = function(link)
        local found = target(link.target)
        link.target = found or ""
        return found and link or link.content
    end,
    Image = function(image)
        image.src = target(image.src)
        return image
    end },
}
