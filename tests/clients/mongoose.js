// mongoose and the Node driver, whose packages carry no tests: what an application does with both.
const mongoose = require('mongoose');
const [uri, stepsFile] = process.argv.slice(2);

(async () => {
  const {step, outcomes} = require(stepsFile);
  await mongoose.connect(uri, {dbName: 'suite', serverSelectionTimeoutMS: 5000});
  await mongoose.connection.dropDatabase();
  const {Schema} = mongoose;
  const Author = mongoose.model('Author', new Schema({name: {type: String, required: true, unique: true}, born: Date}));
  const Post = mongoose.model('Post', new Schema({
    title: {type: String, index: true}, author: {type: Schema.Types.ObjectId, ref: 'Author'},
    comments: [{text: String, votes: {type: Number, default: 0}}], tags: [String], price: Schema.Types.Decimal128,
    views: {type: BigInt, default: 0n}, meta: {type: Map, of: String},
  }, {timestamps: true, optimisticConcurrency: true}));
  const code = async run => { try { await run(); } catch (error) { return error.code || error.name; } };

  await step('init', async () => { await Promise.all([Author.init(), Post.init()]); return (await Author.listIndexes()).length; }, 2);
  const ann = await Author.create({name: 'ann'});
  await step('validation', () => code(() => Author.create({})), 'ValidationError');
  await step('unique', () => code(() => Author.create({name: 'ann'})), 11000);
  await step('save and populate', async () => {
    await Post.create({title: 'one', author: ann, comments: [{text: 'hi'}], tags: ['a', 'b'], price: '1.50', meta: {k: 'v'}});
    const post = await Post.findOne({title: 'one'}).populate('author');
    return [post.author.name, post.comments[0].votes, post.price.toString(), post.views.toString(), post.meta.get('k')];
  }, ['ann', 0, '1.50', '0', 'v']);
  await step('array changes', async () => {
    const post = await Post.findOne({title: 'one'});
    post.comments.push({text: 'again'});
    post.comments[0].votes += 2;
    post.tags.pull('a');
    await post.save();
    const found = await Post.findOne({title: 'one'}).lean();
    return [found.comments.map(comment => comment.votes), found.tags];
  }, [[2, 0], ['b']]);
  await step('version error', async () => {
    const [first, second] = [await Post.findOne({title: 'one'}), await Post.findOne({title: 'one'})];
    first.title = 'two';
    second.title = 'three';
    await first.save();
    return code(() => second.save());
  }, 'VersionError');
  await step('find one and update', async () => (await Post.findOneAndUpdate({title: 'two'},
    {$inc: {'comments.$[of].votes': 5}}, {arrayFilters: [{'of.text': 'again'}], new: true})).comments[1].votes, 5);
  await step('insert many in any order', () => code(() => Author.insertMany(
    [{name: 'ann'}, {name: 'bob'}, {name: 'cat'}], {ordered: false})), 11000);
  await step('insert many went on', () => Author.countDocuments(), 3);
  await step('bulk write', async () => {
    const done = await Author.bulkWrite([{updateOne: {filter: {name: 'dan'}, update: {$set: {born: new Date(0)}}, upsert: true}},
      {deleteOne: {filter: {name: 'cat'}}}]);
    return [done.upsertedCount, done.deletedCount];
  }, [1, 1]);
  await step('aggregate', () => Post.aggregate([{$unwind: '$comments'},
    {$group: {_id: '$title', votes: {$sum: '$comments.votes'}}}]), [{_id: 'two', votes: 7}]);
  await step('cursor', async () => {
    const names = [];
    for await (const author of Author.find().sort('name').cursor({batchSize: 1})) names.push(author.name);
    return names;
  }, ['ann', 'bob', 'dan']);
  await step('transaction that commits', async () => {
    await mongoose.connection.transaction(async session => { await Author.create([{name: 'eve'}], {session}); });
    return Author.countDocuments({name: 'eve'});
  }, 1);
  await step('transaction that aborts', async () => {
    await code(() => mongoose.connection.transaction(async session => {
      await Author.create([{name: 'fay'}], {session});
      throw new Error('no');
    }));
    return Author.countDocuments({name: 'fay'});
  }, 0);
  await step('change stream', async () => {
    const stream = Author.watch([], {fullDocument: 'updateLookup', hydrate: true});
    const next = new Promise((resolve, reject) => stream.once('change', resolve).once('error', reject));
    await new Promise(resolve => stream.driverChangeStream ? resolve() : stream.once('ready', resolve));
    await new Promise(resolve => setTimeout(resolve, 500));
    await Author.create({name: 'gil'});
    const change = await next;
    await stream.close();
    return [change.operationType, change.fullDocument.name];
  }, ['insert', 'gil']);
  await step('files', async () => {
    const bucket = new mongoose.mongo.GridFSBucket(mongoose.connection.db, {chunkSizeBytes: 1000});
    const sent = Buffer.alloc(5500, 7);
    await new Promise((resolve, reject) => bucket.openUploadStream('f').on('finish', resolve).on('error', reject).end(sent));
    const pieces = [];
    for await (const piece of bucket.openDownloadStreamByName('f')) pieces.push(piece);
    return [Buffer.concat(pieces).equals(sent), await mongoose.connection.db.collection('fs.chunks').countDocuments()];
  }, [true, 6]);
  await step('client bulk write', async () => {
    const done = await mongoose.connection.getClient().bulkWrite([
      {name: 'insertOne', namespace: 'suite.a', document: {_id: 1}},
      {name: 'insertOne', namespace: 'suite.b', document: {_id: 1}},
      {name: 'updateOne', namespace: 'suite.a', filter: {_id: 1}, update: {$set: {n: 1}}}]);
    return [done.insertedCount, done.modifiedCount];
  }, [2, 1]);
  await step('sync indexes', async () => {
    await mongoose.connection.collection('authors').createIndex({born: 1});
    return Author.syncIndexes();
  }, ['born_1']);
  await mongoose.connection.dropDatabase();
  await mongoose.disconnect();
  console.log(JSON.stringify(outcomes));
})().catch(error => { console.error(error); process.exit(1); });
