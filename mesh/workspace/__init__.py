"""The files of a workspace: listing, ignore rules, hashes, packs and what is pulled back."""
