"""How stores lie in bytes: keys and values of every kind of entry, and the keys that operators reserve for themselves.

    0x00, 0x01   identities of deduplicate                       `identities`
    "k" "h" "s" "w" "i"   ordered stores: what lies where        `store_keys`
                 what is in an aggregate's entries               `entries`
                 what is in those of a suppress' buffer          `buffers`
    0x02 name    what an operator remembers about itself         `reserved`, `backlog`

It knows bytes and when an entry is over (`expiry`); it refuses to know what operators do with entries.
"""
